"""The training part and the test part of a set, and the accuracy of a model of one setting on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from abound.core.config import ModelConfig
from abound.core.instances.data_formats import DatasetInstance
from abound.service.evaluation.live import evaluate
from benchmarks.sets import NAMES, read_file

UPDATES = ("fsu", "sls")


def parts_of(name: str, data: Path) -> tuple[list[DatasetInstance], list[DatasetInstance]]:
    """Return the training part and the test part of a set of ``benchmarks.sets``."""
    train, test = (list(read_file(str(data / name / f"{part}.{NAMES[name]}.gz"))) for part in ("train", "test"))
    return train, test


def accuracy(train: Iterable[DatasetInstance], test: Iterable[DatasetInstance], config: dict[str, Any]) -> float:
    """Return R@1 in percent, of a model that learned the training part once."""
    return 100 * evaluate(train, test, ModelConfig.from_dict(config))["metrics"]["R@1"]
