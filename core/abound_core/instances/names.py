"""The normal form of labels, and of names and string values of features, in models with ``normalize``.

``"New York "``, and the same with a no-break space, a zero-width space or decomposed letters, are one label. Names get
this form before they are logged: the log has what was meant, and replaying it needs no tables of Unicode.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

import numpy as np

MOST_CHARACTERS = 2**15  # more bytes than any key or label may have; NFC takes quadratic time for marks in a row

_SPACE = re.compile(r"\s")
_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_JOINERS = re.compile("(?<![\u0600-\U0010ffff])[\u200c\u200d]+")
"""Joiners where they mean nothing. Arabic, Indic scripts and emoji need them."""

_NORMAL = re.compile(
    "[\t\n\r -~\xa1-\xac\xae-\u02ff\u0388-\u0482\u048a-\u058f\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u0671-\u06d3"
    "\u1e00-\u1eff\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]*"
)
"""JSON of characters that normalization keeps, whatever their neighbours are."""


def is_normal_json(text: str) -> bool:
    """Return whether the strings of JSON are normal apart from ASCII spaces and escapes; False if unsure."""
    return _NORMAL.fullmatch(text) is not None


def normalized(name: str) -> str:
    """Return a name in NFC, without invisible characters and outer spaces, with U+0020 for each other space."""
    if (name.isascii() and name.isprintable() and name[:1] != " " != name[-1:]) or len(name) > MOST_CHARACTERS:
        return name
    name = unicodedata.normalize("NFC", _INVISIBLE.sub("", _SPACE.sub(" ", name)))
    return unicodedata.normalize("NFC", _JOINERS.sub("", name)).strip(" \u200c\u200d")


def is_absent(value: object) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))


def label_text(label: object) -> str:
    """Return a label as a string. A whole number has one spelling: ``3`` and ``3.0`` are ``3``."""
    is_whole = isinstance(label, float) and label.is_integer() and abs(label) < 2**53
    return str(int(label)) if is_whole else str(label)  # type: ignore[call-overload]


def label_texts(labels: Iterable[object], normalize: bool) -> list[str]:
    """Return labels as strings, without None and NaN."""
    texts = [one if isinstance(one, str) else label_text(one) for one in labels if not is_absent(one)]
    return [normalized(text) for text in texts] if normalize else texts
