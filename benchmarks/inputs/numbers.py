"""Numbers beside texts: R@1 without a number, and with random ones beside half of the texts, of any unit.

``u1100``: with the median 1,100. Both update rules and both values of ``numbers``. ``ten``: ten numbers of different
units. ``tells``: one number beside every text, whose size depends on the label. A set that has numbers itself is
measured as it is.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from abound.core.instances.data_formats import DatasetInstance
from benchmarks.inputs.parts import UPDATES, accuracy, parts_of

SETS = ("clinc150", "reuters21578", "stackex-cooking")

UNITS = (0.05, 3.0, 20.0, 1100.0, 1e6)
"""Medians of random numbers."""


def with_numbers(rows: list[DatasetInstance], medians: tuple[float, ...], seed: int) -> list[DatasetInstance]:
    """Return the instances with random numbers, each in half of the instances: lognormal, of these medians."""
    rng = random.Random(seed)
    found = []
    for row in rows:
        kept = {f"n{i}": m * math.exp(rng.gauss(0, 1)) for i, m in enumerate(medians) if rng.random() < 0.5}
        found.append(replace(row, features=json.dumps(kept).encode()))
    return found


def with_telling(rows: list[DatasetInstance], seed: int) -> list[DatasetInstance]:
    """Return the instances with a number each, whose median is from 10 to 10,000 by the first label."""
    rng = random.Random(seed)
    found = []
    for row in rows:
        median = 10 ** (1 + zlib.crc32(" ".join(row.labels[:1]).encode()) % 100 / 33)
        number = median * math.exp(0.3 * rng.gauss(0, 1))
        found.append(replace(row, features=b'{"price": %a}' % number))
    return found


def measure(name: str, data: Path) -> dict[str, Any]:
    """Measure one set with and without numbers, raw and scaled."""
    train, test = parts_of(name, data)
    ways = {f"u{unit:g}": (with_numbers(train, (unit,), 1), with_numbers(test, (unit,), 2)) for unit in UNITS}
    ways["ten"] = with_numbers(train, 2 * UNITS, 1), with_numbers(test, 2 * UNITS, 2)
    ways["tells"] = with_telling(train, 1), with_telling(test, 2)
    if train[0].text is None:
        ways = {"own": (train, test)}
    figures: dict[str, Any] = {"set": name}
    for update in UPDATES:
        if "own" not in ways:
            figures[f"{update}_none"] = accuracy(train, test, {"update": update})
        for way, parts in ways.items():
            for setting in ("raw", "scaled"):
                figures[f"{update}_{way}_{setting}"] = accuracy(*parts, {"update": update, "numbers": setting})
    return figures
