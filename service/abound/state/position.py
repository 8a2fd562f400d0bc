"""Positions in the log: the last event that was applied."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from abound_core.types import START, Offset


class Position(NamedTuple):
    """Position of a state in its log.

    Attributes
    ----------
    offset : Offset
        Of the last applied event.
    checksum : bytes
        Of that event's entry, to verify that the log is still the same.
    n_entries, log_bytes : int
        Entries of the log so far, and their size as appended (``stream.log_bytes_with``).
    adopted : Offset
        Offset of the last adoption, START without one.
    """

    offset: Offset
    checksum: bytes
    n_entries: int
    log_bytes: int
    adopted: Offset = START


AT_START = Position(START, b"", 0, 0)


class StoredPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A record with the fields of a position; offsets and the checksum are text."""

    offset: str
    entry_checksum: str
    n_entries: int
    log_bytes: int
    adopted: str

    @property
    def position(self) -> Position:
        """Return the position in the log."""
        offset, adopted = Offset.parse(self.offset), Offset.parse(self.adopted)
        return Position(offset, self.entry_checksum.encode(), self.n_entries, self.log_bytes, adopted)

    @staticmethod
    def fields_of(position: Position) -> dict[str, Any]:
        """Return a position as the fields of a record."""
        return {
            "offset": str(position.offset),
            "entry_checksum": position.checksum.decode(),
            "n_entries": position.n_entries,
            "log_bytes": position.log_bytes,
            "adopted": str(position.adopted),
        }
