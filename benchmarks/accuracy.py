"""Accuracy of the live index on real data, in process.

    python -m benchmarks.accuracy [--json] [--data DIR] [--only NAME]...

Splits are made with a fixed seed. The program ends with exit code 1 when a figure is below its target.

The data sets lie in ``--data`` or the directory that ``ABOUND_DATA`` names; Jane Austen's novels come with the program.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abound.datasets import austen
from abound.evaluation.live import evaluate
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from benchmarks.sets import read_file

SEED = 0
Split = tuple[list[DatasetInstance], list[DatasetInstance]]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set, a split and a configuration, and the least R@1 to be reached."""

    name: str
    split: Callable[[Path], Split]
    margin: float
    target: float


def newsgroups(data: Path) -> Split:
    """A random 80/20 split of both parts together."""
    rows = [*read_file(str(data / "newsgroups20/train.jsonl.gz")), *read_file(str(data / "newsgroups20/test.jsonl.gz"))]
    random.Random(SEED).shuffle(rows)
    cut = len(rows) * 4 // 5
    return rows[:cut], rows[cut:]


def reuters(data: Path) -> Split:
    """The ModApte split, all labels; what has no label is not learned."""
    folder = data / "reuters21578"
    train = [row for row in read_file(str(folder / "train.jsonl.gz")) if row.labels]
    return train, list(read_file(str(folder / "test.jsonl.gz")))


def novels(data: Path) -> Split:
    """A random tenth held out."""
    rows = list(austen.stream(SEED))
    cut = len(rows) // 10
    return rows[cut:], rows[:cut]


TASKS = (
    Task("newsgroups20", newsgroups, 0.5, 0.91),
    Task("reuters21578", reuters, 0.0, 0.84),
    Task("austen", novels, 0.0, 0.27),
)


def as_served(split: Split) -> tuple[Split, int]:
    """The instances that a service takes with its default limits, and how many it would refuse."""
    vectorizer = Vectorizer(ModelConfig(), Limits())

    def taken(row: DatasetInstance) -> bool:
        try:
            vectorizer.vectorize(row.features, row.text)
        except InvalidInstance:
            return False
        return True

    train, test = ([row for row in part if taken(row)] for part in split)
    return (train, test), len(split[0]) + len(split[1]) - len(train) - len(test)


def results(tasks: list[Task], data: Path) -> Iterator[dict[str, Any]]:
    """One object a task."""
    for task in tasks:
        split, left_out = as_served(task.split(data))
        here = evaluate(*split, ModelConfig(margin=task.margin))
        wrong = [] if here["metrics"]["R@1"] >= task.target else ["R@1 is below its target"]
        yield {
            "task": task.name,
            "margin": task.margin,
            "target": task.target,
            "left_out": left_out,
            "in_process": here,
            "wrong": wrong,
        }


def show(result: dict[str, Any]) -> None:
    """A few lines for people."""
    here = result["in_process"]
    measured = here["metrics"]
    print(f"{result['task']}, margin {result['margin']:g}: {here['instances']['train']:,} instances to learn", end="")
    print(f", {result['left_out']} too large for a service left out" if result["left_out"] else "")
    print(f"  R@1 {measured['R@1']:.4f} (target {result['target']})", end="")
    print(f"  R@5 {measured['R@5']:.4f}  HR {measured['HR']:.3f}")
    print(f"  {here['connections']:,} connections, {here['work_per_feature']:.1f} visited an active feature")
    print(f"  seconds: {', '.join(f'{name} {value:.2f}' for name, value in here['seconds'].items())}")
    for sentence in result["wrong"]:
        print(f"  WRONG: {sentence}")


def main() -> int:
    """Run it; 0 when every figure is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a task")
    parser.add_argument("--data", type=Path, default=os.environ.get("ABOUND_DATA"), help="folder of the data sets")
    parser.add_argument("--only", action="append", choices=[task.name for task in TASKS], help="these tasks")
    options = parser.parse_args()
    tasks = [task for task in TASKS if options.only is None or task.name in options.only]
    if options.data is None and any(task.name != "austen" for task in tasks):
        parser.error(
            "say where the data sets are, by --data or ABOUND_DATA; python -m benchmarks.data builds them; "
            "--only austen needs none"
        )
    failed = False
    for result in results(tasks, Path(options.data or ".")):
        failed |= bool(result["wrong"])
        print(json.dumps(result), flush=True) if options.json else show(result)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
