"""The version of a model that answers requests: replicated state, changed only by log events.

Every model has its index, the version ``live``; a fitted version has an id. The index keeps learning whichever
version is active, and a new state of the index does not change the active version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from abound_core.types import START, Offset

LIVE = "live"  # id of the index as a version


class ServingState(msgspec.Struct, frozen=True):
    """The active version, and the activation that made it active."""

    version: Annotated[str, Meta(description="The active version; `live` is the index.")] = LIVE
    digest: Annotated[str, Meta(description="Digest of that version; empty for the index.")] = ""
    former: Annotated[str, Meta(description="The version that was active before, for a rollback.")] = LIVE
    former_digest: str = ""
    activation: Annotated[str, Meta(description="Id of the activation.")] = ""
    at: Annotated[str, Meta(description="Offset from which it is active.")] = str(START)

    @property
    def is_live(self) -> bool:
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

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)


NEVER_ACTIVATED = ServingState()
