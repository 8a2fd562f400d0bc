"""Which version of a model answers: part of the replicated state, changed only by events of the log.

Every model has its index, the version ``live``; a fitted one has an id. The index learns on whatever is active, and an
index that is adopted changes nothing of this.
"""

from __future__ import annotations

import msgspec

from abound.core.types import START, Offset

LIVE = "live"
"""The version that is the index."""

BLEND = "blend"
"""No version, but the index and the active one together."""

EVEN = (0.5, 0.5)


class Serving(msgspec.Struct, frozen=True):
    """What is active, and since when.

    Attributes
    ----------
    version, digest : str
        The active version; ``live`` has no digest, since it changes with every event.
    former, former_digest : str
        The one that was active before.
    activation : str
        Id of the activation that made it so.
    at : str
        Offset of that event.
    weights : (float, float)
        Of the index and of the active version, when both are blended: >= 0, not both 0.
    """

    version: str = LIVE
    digest: str = ""
    former: str = LIVE
    former_digest: str = ""
    activation: str = ""
    at: str = str(START)
    weights: tuple[float, float] = EVEN

    @property
    def is_live(self) -> bool:
        """Whether the index answers."""
        return self.version == LIVE

    def activated(self, activation: str, version: str, digest: str, at: Offset) -> Serving:
        """After an activation. One that came already, or of what is active already, changes nothing but its id."""
        if activation == self.activation:
            return self
        if (version, digest) == (self.version, self.digest):
            return msgspec.structs.replace(self, activation=activation)
        return Serving(version, digest, self.version, self.digest, activation, str(at))

    def weighed(self, version: str, weights: tuple[float, float]) -> Serving:
        """With other weights for blending with ``version``; with any but the active one nothing changes."""
        return msgspec.structs.replace(self, weights=weights) if version == self.version else self

    def packed(self) -> bytes:
        """For digests."""
        return msgspec.json.encode(self)


FROM_THE_START = Serving()
"""Nothing was ever activated."""
