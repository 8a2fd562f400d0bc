"""The version of a model that answers requests: replicated state, changed only by log events.

Every model has its index, the version ``live``; a fitted version has an id. The index keeps learning whichever
version is active, and the adoption of a new index state does not change the active version.
"""

from __future__ import annotations

import msgspec

from abound.core.types import START, Offset

LIVE = "live"
"""Id of the index as a version."""

BLEND = "blend"
"""The index and the active version blended; not a version of its own."""

EVEN_WEIGHTS = (0.5, 0.5)


class ServingState(msgspec.Struct, frozen=True):
    """The active version, and the activation that made it active.

    Attributes
    ----------
    version, digest : str
        The active version; ``live`` has no digest, since it changes with every event.
    former, former_digest : str
        The version that was active before.
    activation : str
        Id of the activation.
    at : str
        Offset of the activation event.
    weights : (float, float)
        Blend weights of the index and of the active version: >= 0, not both 0.
    """

    version: str = LIVE
    digest: str = ""
    former: str = LIVE
    former_digest: str = ""
    activation: str = ""
    at: str = str(START)
    weights: tuple[float, float] = EVEN_WEIGHTS

    @property
    def is_live(self) -> bool:
        """Whether the index answers requests."""
        return self.version == LIVE

    def after_activation(self, activation: str, version: str, digest: str, at: Offset) -> ServingState:
        """Return the state after an activation.

        A repeated activation changes nothing. An activation of the active version changes only the activation id.
        """
        if activation == self.activation:
            return self
        if (version, digest) == (self.version, self.digest):
            return msgspec.structs.replace(self, activation=activation)
        return ServingState(version, digest, self.version, self.digest, activation, str(at))

    def with_weights(self, version: str, weights: tuple[float, float]) -> ServingState:
        """Return the state with other blend weights, or the same state if ``version`` is not active."""
        return msgspec.structs.replace(self, weights=weights) if version == self.version else self

    def to_bytes(self) -> bytes:
        """Return the bytes that digests cover."""
        return msgspec.json.encode(self)


NEVER_ACTIVATED = ServingState()
"""The state of a model on which no version was ever activated."""
