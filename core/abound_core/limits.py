"""Size limits of instances, labels and names."""

from __future__ import annotations

from dataclasses import dataclass, fields

MOST_FEATURES = 2**20
MOST_KEY_BYTES = 2**15
MOST_LABELS = 2**16 - 1  # a record counts labels of a kind in 16 bits

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
NAME_RULE = "must begin with a letter or digit and have up to 64 letters, digits, '_', '.' and '-'"
"""What ``MODEL_NAME`` requires of the name of a model or a data set, as errors say it."""

MAX_KEY_CHARACTERS = 255
MAX_SOURCE_CHARACTERS = 512

MAX_FIELDS = 16  # of a text

MAX_FIELD_NAME = 64  # characters of the name of a field of a text

MAX_DIMENSION = 2048  # of a dense vector

MAX_DETAILS_BYTES = 16_384  # of the registered details of a label, as JSON

MAX_WEIGHT = 100.0  # of an instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Size limits of one instance. Raises ValueError when a limit is outside its own range.

    Attributes
    ----------
    max_features : int, 1 to 1,048,576
        Distinct active features of an instance, including the terms of its text.
    max_key_bytes : int, 1 to 32,768
        UTF-8 bytes of a whole feature key, such as ``country=FI``.
    max_labels : int, 1 to 65,535
        Labels of an instance to learn, at most 65,535.
    max_label_bytes : int, 1 to 32,768
        UTF-8 bytes of a label.
    max_text_bytes : int >= 0
        UTF-8 bytes of a text, also once it is normalised. ``max_features`` limits its terms.
    """

    max_features: int = 10_000
    max_key_bytes: int = 512
    max_labels: int = 100
    max_label_bytes: int = 512
    max_text_bytes: int = 2**20

    def __post_init__(self) -> None:
        most = {
            "max_key_bytes": MOST_KEY_BYTES,
            "max_labels": MOST_LABELS,
            "max_label_bytes": MOST_KEY_BYTES,
            "max_text_bytes": 2**40,
        }
        for field in fields(self):
            value, high = getattr(self, field.name), most.get(field.name, MOST_FEATURES)
            if not 1 <= value <= high:
                raise ValueError(f"{field.name} must be from 1 to {high}, not {value}")


DATASET_LIMITS = Limits(
    max_features=2**20, max_key_bytes=2**15, max_labels=MOST_LABELS, max_label_bytes=2**15, max_text_bytes=2**26
)
"""Limits for data sets, which may hold larger instances than a service accepts."""
