"""The warning about negative numbers, which a model with ``negative: ignore`` does not learn."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from abound_core.errors import InvalidInstance
from abound_core.instances.json_fallback import LONG_JSON, read_json

MIN_EMBEDDING = 64  # more numbers than this, a third of them negative, look like an embedding

MOST_NAMED = 5  # ignored numbers in a warning

MOST_NAME_CHARACTERS = 64

_NEGATIVE = re.compile(rb":[ \t\r\n]*-")


def warning_of(features: bytes) -> str | None:
    """Return the warning about negative numbers in the JSON of features; None if it has none or is invalid."""
    is_long = len(features) > LONG_JSON
    if b"-" not in features or (not is_long and _NEGATIVE.search(features) is None):
        return None
    try:
        pairs = dict(read_json(features)) if is_long else msgspec.json.decode(features, type=dict[str, Any])
    except (msgspec.DecodeError, InvalidInstance):
        return None
    numbers = {name: value for name, value in pairs.items() if type(value) in (int, float)}
    ignored = [name for name, value in numbers.items() if value < 0]
    if not ignored:
        return None
    if len(numbers) > MIN_EMBEDDING and 3 * len(ignored) >= len(numbers):
        return (
            f"{len(ignored)} of {len(numbers)} numbers are negative and ignored (`negative: ignore`); send an "
            "embedding as `vector`, to a model with `update: sls`"
        )
    names = [name if len(name) <= MOST_NAME_CHARACTERS else f"{name[:MOST_NAME_CHARACTERS]}..." for name in ignored]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (
        f"negative numbers are ignored (`negative: ignore`): {', '.join(names[:MOST_NAMED])}{more}; a model with "
        "`negative: split` learns them"
    )
