"""What a forgetting has taken out, so far: its record, noted before each step, so that whoever goes on after a crash
knows what was done by the one who died and cannot be found any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

Keep = Callable[[dict[str, Any]], Awaitable[None]]
"""Keeps a record for certain."""


async def _nowhere(record: dict[str, Any]) -> None:
    """Nobody goes on after a crash."""


class Cleared:
    """The record of one forgetting.

    Parameters
    ----------
    known : mapping
        The record as one that died has left it, or nothing.
    keep : async callable
    """

    def __init__(self, known: Mapping[str, Any] | None = None, keep: Keep = _nowhere) -> None:
        known = known or {}
        self._keep = keep
        self._found: dict[str, Any] = {name: known[name] for name in ("forgotten", "from") if name in known}
        self._names: dict[str, dict[str, None]] = {
            name: dict.fromkeys(known.get(name, ()))
            for name in ("versions_deleted", "snapshots_deleted", "segments_rewritten", "indexes_deleted")
        }
        self._remade: dict[str, str] = dict(known.get("indexes_rewritten", {}))
        self._n_remembered = int(known.get("remembered_deleted", 0))

    def record(self, **last: Any) -> dict[str, Any]:
        """All of it, and what is only known at the end."""
        return {
            **self._found,
            **{name: list(names) for name, names in self._names.items()},
            "indexes_rewritten": dict(self._remade),
            "remembered_deleted": self._n_remembered,
            **last,
        }

    async def found(self, counts: Mapping[str, Any], snapshots: Iterable[str]) -> None:
        """What is to be forgotten, and which snapshots there are that may hold it."""
        self._found = dict(counts)
        await self.will_delete_snapshots(snapshots)

    async def will_delete_versions(self, names: Iterable[str]) -> None:
        """These go now."""
        self._names["versions_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    async def will_delete_snapshots(self, names: Iterable[str]) -> None:
        """These go as newer ones come."""
        self._names["snapshots_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())

    def kept_snapshots(self, names: Iterable[str]) -> None:
        """These have stayed."""
        for name in names:
            self._names["snapshots_deleted"].pop(name, None)

    async def will_forget_remembered(self, n: int) -> None:
        """So many remembered instances go; one that died may have counted some of them already, or all."""
        self._n_remembered = max(self._n_remembered, n)
        await self._keep(self.record())

    async def will_rewrite(self, segments: Iterable[str], indexes: Mapping[str, str]) -> None:
        """History is about to name others in the place of these."""
        self._names["segments_rewritten"] |= dict.fromkeys(segments)
        self._remade |= indexes
        await self._keep(self.record())

    async def will_delete_indexes(self, names: Iterable[str]) -> None:
        """These go now."""
        self._names["indexes_deleted"] |= dict.fromkeys(names)
        await self._keep(self.record())
