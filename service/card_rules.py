"""What holds for every card of a version: a file from elsewhere brings its own, and it is believed from then on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.errors import Damaged
from core.types import Offset

if TYPE_CHECKING:
    from service.versions import Card

SIZES = frozenset(("instances", "features", "classes", "nnz", "assertions"))

MOST_ENTRIES = 200
MOST_CHARACTERS = 300
MOST_NUMBER = 2**63 - 1

_ID = re.compile(r"[0-9a-z]{8,32}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,120}\.npy")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


def check(card: Card) -> None:
    """Damaged unless every field is one that this product writes."""
    plain = (card.model, card.incarnation, card.method, card.data, card.job or "", *card.libraries.values())
    names = (*card.libraries, *card.metrics, *card.params, *(card.origin or {}), *(card.origin or {}).values())
    _demand(all(len(text) <= MOST_CHARACTERS for text in (*plain, *names)), "a text is too long")
    entries = (card.libraries, card.metrics, card.params, card.meta, card.origin or {})
    _demand(all(len(one) <= MOST_ENTRIES for one in entries), "there are too many entries")
    _demand(_ID.fullmatch(card.id) is not None, "the id is none")
    _demand((card.method, card.params) == (card.meta.get("method"), card.meta.get("params")), "methods differ")
    _demand(all(_is_plain(value) for value in card.params.values()), "a parameter is no plain value")
    _demand(all(value is None or _is_number(value) for value in card.metrics.values()), "a measure is no number")
    _demand(set(card.sizes) == SIZES and all(_counts(n) for n in card.sizes.values()), "the sizes are none")
    _demand(0 <= card.seed <= MOST_NUMBER and _counts(card.n_bytes), "a number is out of range")
    _demand(0.0 <= card.created < 1e11, "the time is none")
    _offset(card.offset)
    if card.data_range is not None:
        _range(card.data_range)
    for one in card.files:
        _demand(_FILE.fullmatch(one.file) is not None and len(one.name) <= MOST_CHARACTERS, "a file has no name")
        _demand(_CHECKSUM.fullmatch(one.checksum) is not None and _counts(one.size), "a file is not described")
        _demand(all(_counts(n) for n in one.shape) and len(one.shape) <= 8, "an array has no shape")
        _demand(len(one.dtype) <= 16, "an array has no type")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Damaged(f"the card of a version breaks a rule: {otherwise}")


def _counts(value: int) -> bool:
    return 0 <= value <= MOST_NUMBER


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) <= MOST_NUMBER


def _is_plain(value: Any) -> bool:
    return value is None or _is_number(value) or (isinstance(value, str) and len(value) <= MOST_CHARACTERS)


def _offset(text: str) -> None:
    try:
        Offset.parse(text)
    except ValueError:
        raise Damaged("the card of a version breaks a rule: an offset is none") from None


def _range(told: Mapping[str, str | None]) -> None:
    _demand(set(told) == {"after", "until"}, "the range is none")
    for end in told.values():
        if end is not None:
            _offset(end)
