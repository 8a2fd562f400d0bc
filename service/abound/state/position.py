from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from abound_core.types import START, Offset


class Position(NamedTuple):
    """Position of a state in its log: the last event that was applied."""

    offset: Offset  # of the last applied event
    checksum: bytes  # of its entry, to verify that the log is still the same
    n_entries: int  # of the log so far
    log_bytes: int  # their size


AT_START = Position(START, b"", 0, 0)


class StoredPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A record with the fields of a position; offsets and the checksum are text."""

    offset: str
    entry_checksum: str
    n_entries: int
    log_bytes: int

    @property
    def position(self) -> Position:
        return Position(Offset.parse(self.offset), self.entry_checksum.encode(), self.n_entries, self.log_bytes)

    @staticmethod
    def fields_of(position: Position) -> dict[str, Any]:
        return {
            "offset": str(position.offset),
            "entry_checksum": position.checksum.decode(),
            "n_entries": position.n_entries,
            "log_bytes": position.log_bytes,
        }
