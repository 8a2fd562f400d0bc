"""Texts with fields: R@1 with the title (the first line, or the subject) and the body of a text as fields.

And with both as one text, for both update rules.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from abound.core.instances.data_formats import DatasetInstance
from benchmarks.inputs.parts import UPDATES, accuracy, parts_of

SETS = ("commits-git", "newsgroups20", "reuters21578")


def with_fields(row: DatasetInstance, name: str) -> DatasetInstance:
    """Return the instance with its first line, or the subject of a newsgroup's article, as the field ``title``."""
    title, body = str(row.text), ""
    if name == "newsgroups20":
        header, _, body = title.partition("\n\n")
        title = "".join(re.findall(r"^Subject: (?:Re: )?(.*)$", header, re.MULTILINE)[:1])
    else:
        title, _, body = title.partition("\n")
    return replace(row, text={"title": title, "body": body})


def joined(row: DatasetInstance) -> DatasetInstance:
    """Return the instance with its fields as one text."""
    assert isinstance(row.text, dict)
    return replace(row, text="\n".join(row.text.values()))


def measure(name: str, data: Path) -> dict[str, Any]:
    """Measure one set with its fields, and with the same texts as one."""
    train, test = ([with_fields(row, name) for row in rows] for rows in parts_of(name, data))
    figures: dict[str, Any] = {"set": name}
    for update in UPDATES:
        figures[f"{update}_joined"] = accuracy(map(joined, train), map(joined, test), {"update": update})
        for weight in (0.5, 1.0):
            config = {"update": update, "analyzer": {"field_weight": weight}}
            figures[f"{update}_fields_{weight:g}"] = accuracy(train, test, config)
    return figures
