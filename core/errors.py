"""The errors of the product, and nothing else.

    AboundError
    ├── Malformed            the body is not what its content type says
    ├── InvalidInstance      well formed, but a field breaks a rule; names the field
    ├── TooLarge             a size limit is broken
    ├── UnknownModel  UnknownVersion  UnknownPrediction  UnknownSnapshot
    ├── UnknownArtifact  UnknownOffset  UnknownJob  UnknownDataset  UnknownKey
    ├── Conflict             against the present state: a configuration change, a class too many
    │   └── VersionGone      the version that a job made was taken away before the job had ended
    ├── Unauthorized         no key was shown where one is asked for
    │   └── InvalidKey       one was shown that opens nothing
    ├── Forbidden            the key does not have the scope, or is for other models
    ├── RateLimited          more instances than may come in a time
    ├── NoRoom               the model has the memory that it may have
    ├── NeedsMemory          a job would not fit in the memory of any worker
    ├── NotReady             this replica cannot answer (yet): starting, draining, behind
    │   └── ClusterUnavailable   the machines that batch work is spread over are gone, or not there yet
    ├── Overloaded           a queue is full; the same request may be sent again later
    ├── StoreUnavailable     the store is away; nothing was appended
    ├── ArtifactsUnavailable the artifact store cannot be reached or is not the right one
    ├── Cancelled            a job was told to stop
    ├── OutcomeUnknown       the store went away in the middle of an append
    ├── Damaged              a snapshot part, a manifest or a log entry does not have its checksum or shape
    ├── UnknownApplyVersion  a log entry or a snapshot of a release that is newer than this one
    └── CannotStart          the service refuses to start, and says what mends it
        └── WrongSetting     a setting is none, or has a value that it cannot have

``service/api/problems.py`` maps them to HTTP; nothing else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abound.core.types import Offset


class AboundError(Exception):
    """Anything that this product raises on purpose. ``str(error)`` is the sentence for the user."""


class Malformed(AboundError):
    """The body cannot be read as what its content type says it is."""


class InvalidInstance(AboundError):
    """A field breaks a rule.

    Parameters
    ----------
    detail : str
        What is wrong, in a sentence.
    field : str
        Where, as a path like ``features.price`` or ``instances[3].labels``.
    """

    def __init__(self, detail: str, field: str) -> None:
        super().__init__(detail)
        self.field = field

    def inside(self, outer: str) -> InvalidInstance:
        """The same error with ``outer`` in front of its field: ``instances[3]`` + ``labels``."""
        return InvalidInstance(str(self), f"{outer}.{self.field}" if self.field else outer)


class TooLarge(AboundError):
    """A body, a batch or a line is over its limit."""


class UnknownModel(AboundError):
    """No model has this name."""


class UnknownVersion(AboundError):
    """The model has no such version."""


class UnknownLabel(AboundError):
    """The model was never taught this label."""


class UnknownPrediction(AboundError):
    """No instance is remembered under this id, or no longer. ``field``: where the id stands in a request."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class UnknownSnapshot(AboundError):
    """The model has no such snapshot."""


class UnknownArtifact(AboundError):
    """The artifact store has nothing under this name."""


class UnknownOffset(AboundError):
    """What came after this offset is gone; ``first`` is the first one after which everything can be had."""

    def __init__(self, detail: str, first: Offset) -> None:
        super().__init__(detail)
        self.first = first


class UnknownJob(AboundError):
    """There is no such job, or no longer."""


class UnknownDataset(AboundError):
    """There is no such data set, or no longer."""


class UnknownKey(AboundError):
    """No key has this id."""


class Unauthorized(AboundError):
    """No key was shown where one is asked for."""


class InvalidKey(Unauthorized):
    """The key that was shown opens nothing: unknown, revoked or expired."""


class Forbidden(AboundError):
    """The key that was shown is not for this. Names the ``scope`` or the ``model`` that it lacks."""

    def __init__(self, detail: str, scope: str | None = None, model: str | None = None) -> None:
        super().__init__(detail)
        self.scope = scope
        self.model = model


class RateLimited(AboundError):
    """More instances than may come in a time. Nothing of the request was taken."""

    def __init__(self, detail: str, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class NoRoom(AboundError):
    """The model may not take so much memory. Nothing was changed, and trying again alone will not help."""


class NeedsMemory(AboundError):
    """A job would need more memory than any worker has. Says the arithmetic."""


class Cancelled(AboundError):
    """A job was told to stop. Whoever is told so lets it through."""


class Conflict(AboundError):
    """Right in itself, but not in the present state of the model."""


class VersionGone(Conflict):
    """The version that a job made was taken away before the job had ended. Trying again does not bring it back."""


class NotReady(AboundError):
    """This replica cannot answer now.

    Parameters
    ----------
    detail : str
        Why, in a sentence.
    retry_after : float
        Seconds after which another try makes sense.
    lag : int or None
        Entries that this replica is behind the log, where that is the reason.
    """

    def __init__(self, detail: str, retry_after: float = 1.0, lag: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.lag = lag


class ClusterUnavailable(NotReady):
    """The cluster that batch work is spread over cannot be reached, has no worker, or lost what it was doing."""


class Overloaded(AboundError):
    """A bounded queue is full. Nothing of the request was taken."""

    def __init__(self, detail: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class StoreUnavailable(AboundError):
    """The store cannot be reached. Nothing of the request was appended."""

    def __init__(self, detail: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class ArtifactsUnavailable(AboundError):
    """The artifact store cannot be reached, cannot be written or is another one. Says which, and what mends it.

    Attributes
    ----------
    retry_after : float
        Seconds after which another try makes sense.
    """

    retry_after = 60.0


class OutcomeUnknown(AboundError):
    """The store went away during an append: the event may or may not be in the log."""


class Damaged(AboundError):
    """Stored bytes that do not have their checksum, format or shape. Says which."""


class UnknownApplyVersion(AboundError):
    """A log entry or a snapshot was written by a release that means something else by it."""


class CannotStart(AboundError):
    """The service refuses to start. Says why and which command or setting mends it."""


class WrongSetting(CannotStart):
    """A setting has a value that it cannot have: wrong use, of a command or of its environment."""
