"""Positions in the log: the last event that was applied."""

from __future__ import annotations

from typing import NamedTuple

from abound.core.types import START, Offset


class Position(NamedTuple):
    """How far a state is in its log.

    Attributes
    ----------
    offset : Offset
        Of the event applied last.
    checksum : bytes
        Of that event's entry, by which the log is known again.
    n_entries, log_bytes : int
        Entries of the log so far, and their size as they were appended (``segment.bytes_with``).
    adopted : Offset
        Where an index was adopted last, START when none was.
    """

    offset: Offset
    checksum: bytes
    n_entries: int
    log_bytes: int
    adopted: Offset = START


AT_START = Position(START, b"", 0, 0)
