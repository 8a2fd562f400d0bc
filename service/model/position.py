"""Positions in the log: the last event that was applied."""

from __future__ import annotations

from typing import NamedTuple

from abound.core.types import START, Offset


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
