"""Accuracy on the inputs that applications send, and from the feedback that they give.

    python -m benchmarks.inputs [--json] [--data DIR] [--only PART]... [--set NAME]... [--quick]

The parts are ``text``, ``fields``, ``numbers``, ``names`` and ``feedback``: the modules of this folder describe them.
Figures are in percent, after one pass.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from abound.core.model.live_model import warmup
from benchmarks.inputs import feedback, fields, label_names, numbers, texts
from benchmarks.sets import data_folder

PARTS: dict[str, tuple[Callable[[str, Path], dict[str, Any]], tuple[str, ...]]] = {
    "fields": (fields.measure, fields.SETS),
    "numbers": (numbers.measure, numbers.SETS),
    "names": (label_names.measure, label_names.SETS),
    "feedback": (feedback.measure, feedback.SETS),
    "text": (texts.measure, texts.SETS),  # last: it needs translations that are unpacked elsewhere
}


def lines_of(figures: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield lines with the figures: the numbers of an object in one line, and each object in it below."""
    plain = {key: value for key, value in figures.items() if not isinstance(value, dict)}
    if plain:
        shown = (f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items())
        yield indent + "  ".join(shown)
    for key, value in figures.items():
        if isinstance(value, dict):
            yield f"{indent}  {key}:"
            yield from lines_of(value, indent + "    ")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON object per set")
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--set", action="append", help="only this set; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a tenth of the events of the part feedback")
    options = parser.parse_args()
    data = data_folder(options.data)
    warmup()
    for part, (measure, names) in PARTS.items():
        if options.quick and part == "feedback":
            measure = partial(feedback.measure, n_events=feedback.EVENTS // 10)
        for name in names:
            if (options.only and part not in options.only) or (options.set and name not in options.set):
                continue
            figures = {"part": part} | measure(name, data)
            print(json.dumps(figures) if options.json else "\n".join(lines_of(figures)), flush=True)


if __name__ == "__main__":
    main()
