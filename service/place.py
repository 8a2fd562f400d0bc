"""Where an index of a model is made and adopted, and who is told of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from service.artifacts import Artifacts
from service.catalog import Living, ModelKeys
from service.history import HistoryParams
from service.log import LogParams
from service.snapshots import SnapshotParams
from service.store import Store


async def _nothing(*_: str) -> None:
    """Nobody has to be told."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an index is made and adopted.

    Attributes
    ----------
    store : Store
    artifacts : Artifacts
        Joined.
    living : Living
        The model.
    between : async callable
        Awaited now and then; what it raises ends the work, until it is committed.
    will_write : async callable
        Told the folder in the artifact store that is written next.
    commit : async callable
        Told right before the adoption is appended, with the folders that are the model's own from then on; what it
        raises ends the work.
    prepare_seconds : float
        Longest wait for replicas to be ready; those that are not by then halt until they are.
    log, snapshots, history : parameters of these
    """

    store: Store
    artifacts: Artifacts
    living: Living
    between: Callable[[], Awaitable[None]] = _nothing
    will_write: Callable[[str], Awaitable[None]] = _nothing
    commit: Callable[..., Awaitable[None]] = _nothing
    prepare_seconds: float = 300.0
    log: LogParams = field(default_factory=LogParams)
    snapshots: SnapshotParams = field(default_factory=SnapshotParams)
    history: HistoryParams = field(default_factory=HistoryParams)

    @property
    def keys(self) -> ModelKeys:
        """Of the model."""
        return self.living.keys
