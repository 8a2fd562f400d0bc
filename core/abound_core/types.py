"""Small types shared by all packages: offsets, rankings and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Text = str | Mapping[str, str | None]
"""A text, or the texts of named fields, such as ``title`` and ``body``; those of None are absent."""

_OFFSET = re.compile(r"(\d{1,20})-(\d{1,20})\.(\d{1,9})", re.ASCII)


class Offset(NamedTuple):
    """A position in a model's log: the stream entry and the position of an event in it, as ``1763600000000-0.3``."""

    milliseconds: int
    sequence: int
    position: int

    @property
    def entry(self) -> str:
        return f"{self.milliseconds}-{self.sequence}"

    @property
    def before(self) -> Offset:
        """Return the largest possible offset in any earlier entry."""
        if self.sequence:
            return Offset(self.milliseconds, self.sequence - 1, 2**64 - 1)
        return Offset(self.milliseconds - 1, 2**64 - 1, 2**64 - 1) if self.milliseconds else Offset(0, 0, 0)

    def __str__(self) -> str:
        return f"{self.milliseconds}-{self.sequence}.{self.position}"

    @classmethod
    def parse(cls, text: str) -> Offset:
        """Parse ``1763600000000-0.3``. Raises ValueError if the text has another form or a number exceeds 64 bits."""
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise ValueError(f"not an offset: {text[:64]!r}")
        offset = cls(*map(int, match.groups()))
        if max(offset) >= 2**64:
            raise ValueError(f"not an offset: {text[:64]!r}")
        return offset

    @classmethod
    def of_entry(cls, entry_id: bytes | str, position: int = 0) -> Offset:
        """Return the offset of an event in the stream entry ``b'1763600000000-0'``."""
        milliseconds, _, sequence = (entry_id if isinstance(entry_id, str) else entry_id.decode()).partition("-")
        return cls(int(milliseconds), int(sequence), position)


START = Offset(0, 0, 0)  # of a model that has applied nothing, before every entry


class Ranking(NamedTuple):
    """Classes by score, best first. Of classes with equal scores, the one learned first comes first."""

    class_ids: npt.NDArray[np.int32]  # shape (k,)
    scores: npt.NDArray[np.float64]  # shape (k,)
    # shape (k,), or None; set only for a model that calibrates, when the caller asks for them
    probabilities: npt.NDArray[np.float64] | None = None

    def first(self, k: int) -> Ranking:
        probabilities = None if self.probabilities is None else self.probabilities[:k]
        return Ranking(self.class_ids[:k], self.scores[:k], probabilities)
