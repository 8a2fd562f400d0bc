"""Exceptions that Abound raises on purpose. Only ``abound/api/problems.py`` maps them to HTTP."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from abound_core.types import Offset


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name[:64], sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


class AboundError(Exception):
    """The base class of all errors that Abound raises on purpose. ``str(error)`` is the sentence for the user."""


class Malformed(AboundError):
    """The body does not match its content type."""


class WrongOption(Malformed):
    """A line has another encoding or other quotes than its file is read with; more of them may follow."""


class InvalidInstance(AboundError):
    """A field breaks a rule. ``field`` is its path, such as ``features.price`` or ``instances[3].labels``."""

    def __init__(self, detail: str, field: str) -> None:
        super().__init__(detail)
        self.field = field

    def inside(self, outer: str) -> InvalidInstance:
        """Return the same error with ``outer`` in front of its field, such as ``instances[3]`` + ``labels``."""
        return type(self)(str(self), f"{outer}.{self.field}" if self.field else outer)


class NoFeatures(InvalidInstance):
    """An instance to learn has no active feature, such as a text without words."""


class Contradiction(InvalidInstance):
    """Two fields of a configuration contradict each other."""


class TooLarge(AboundError):
    """A body, a batch or a line exceeds its size limit."""


class UnknownModel(AboundError):
    """No model has this name. ``plain`` is the sentence without ``hint``, for keys that may not see all names."""

    def __init__(self, plain: str, hint: str = "") -> None:
        super().__init__(plain + hint)
        self.plain = plain


class UnknownVersion(AboundError):
    """The model has no such version."""


class UnknownLabel(AboundError):
    """The model has never learned this label. ``field`` is its place in the request."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class UnknownPrediction(AboundError):
    """No instance is stored under this id, or it has expired. ``field`` is the place of the id in the request."""

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class UnknownSnapshot(AboundError):
    """The model has no such snapshot."""


class UnknownArtifact(AboundError):
    """The artifact store has nothing under this name."""


class UnknownOffset(AboundError):
    """The log no longer holds the events after this offset. ``first`` is the earliest offset that can be read from."""

    def __init__(self, detail: str, first: Offset) -> None:
        super().__init__(detail)
        self.first = first


class UnknownEvent(AboundError):
    """The model was taught no event at this offset, or does not list it as suspicious."""


class UnknownJob(AboundError):
    """The job does not exist or has expired."""


class UnknownDataset(AboundError):
    """The data set does not exist or has been deleted."""


class UnknownKey(AboundError):
    """No API key has this id."""


class Unauthorized(AboundError):
    """The request needs an API key and has none."""


class InvalidKey(Unauthorized):
    """The API key is unknown, revoked or expired."""


class Forbidden(AboundError):
    """The API key lacks a permission: ``scope`` or ``model`` names it."""

    def __init__(self, detail: str, scope: str | None = None, model: str | None = None) -> None:
        super().__init__(detail)
        self.scope = scope
        self.model = model


class RateLimited(AboundError):
    """The request exceeds the rate limit in instances. Nothing of the request was applied."""

    def __init__(self, detail: str, retry_after: float) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class MemoryLimitExceeded(AboundError):
    """The model has reached its memory limit. Nothing was changed, and a retry alone will not help."""


class Cancelled(AboundError):
    """A job was cancelled. Code that receives this error must not swallow it."""


class Conflict(AboundError):
    """The request is valid but contradicts the present state of the model."""


class VersionDeleted(Conflict):
    """The version that a job produced was deleted before the job ended. A retry does not bring it back."""


class NotReady(AboundError):
    """This replica cannot answer now. ``lag``: the entries that it is behind the log, where that is the reason."""

    def __init__(self, detail: str, retry_after: float = 1.0, lag: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.lag = lag


class ClusterUnavailable(NotReady):
    """The Dask cluster for batch work cannot be reached, has no worker, or lost its tasks."""


class Overloaded(AboundError):
    """A bounded queue is full. Nothing of the request was applied."""

    def __init__(self, detail: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class StoreUnavailable(AboundError):
    """The store cannot be reached. Nothing of the request was appended."""

    def __init__(self, detail: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class StoreRefused(StoreUnavailable):
    """The store refused a command. It may accept others."""


class ArtifactsUnavailable(AboundError):
    """The artifact store cannot be reached, cannot be written, or is the wrong one."""

    retry_after = 60.0


class EncoderUnavailable(AboundError):
    """An encoder behind a URL did not answer, or not with vectors. Nothing of the request was learned."""


class OutcomeUnknown(AboundError):
    """The connection to the store was lost during an append: the event may or may not be in the log."""


class Corrupted(AboundError):
    """Stored bytes have a wrong checksum, format or shape. The message says which."""


class UnknownApplyVersion(AboundError):
    """A log entry or a snapshot was written by a release that interprets it differently."""


class CannotStart(AboundError):
    """The service refuses to start. The message names the reason and the command or setting that fixes it."""


class WrongSetting(CannotStart):
    """A setting, or a command line, has a value that is not allowed."""
