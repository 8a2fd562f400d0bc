"""Accuracy on the inputs that applications send: text in many languages, and texts with fields.

    python -m benchmarks.inputs [--json] [--data DIR] [--only text|fields|numbers] [--set NAME]

``text``: R@1 with ``analyzer.boundaries`` simple and unicode, for both update rules. The English sets are those of
``benchmarks.sets``. The others are made from Debian packages, unpacked below ``DIR/translations``:

- ``messages-LANGUAGE``: which module of LibreOffice does a message come from? (``libreoffice-l10n-LANGUAGE``)
- ``pages-LANGUAGE``: which manual page does a paragraph come from? (``manpages-LANGUAGE``)

A tenth of the instances is the test part. All of a set is in one random order.

``fields``: R@1 with the title (the first line, or the subject) and the body of a text as fields, and with both as one
text, for both update rules.

``numbers``: R@1 of texts without a number, and with random ones beside half of them, of any unit (``u1100``: with the
median 1,100), for both update rules and both values of ``numbers``. ``ten``: ten numbers of different units. ``tells``:
one number beside every text, whose size depends on the label. A set that has numbers itself is measured as it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from abound.core.config import ModelConfig
from abound.core.instances.data_formats import DatasetInstance
from abound.core.model.live_model import warmup
from abound.service.datasets.files import read_file
from abound.service.evaluation.live import evaluate
from benchmarks.sets import NAMES, data_folder

ENGLISH = ("clinc150", "reuters21578", "newsgroups20")
MESSAGES = ("zh_CN", "ja", "th", "hi", "ar", "de", "fi")
PAGES = ("zh_CN", "ja", "de", "fi")
TEXT = (*ENGLISH, *(f"messages-{one}" for one in MESSAGES), *(f"pages-{one}" for one in PAGES))

MOST = 20_000
"""Instances of a translated set."""

LEAST_CHARACTERS, LEAST_OF_PAGE = 15, 10
"""Shorter texts, and pages with fewer paragraphs, are left out."""

FIELDS = ("commits-git", "newsgroups20", "reuters21578")

NUMBERS = ("clinc150", "reuters21578", "stackex-cooking")

UNITS = (0.05, 3.0, 20.0, 1100.0, 1e6)
"""Medians of random numbers."""

UPDATES = ("fsu", "sls")

_MARKUP = re.compile(r"\\f[A-Z]|\\f\[\w*\]|\\[&,/|]")
_ACCELERATOR = re.compile(r"[~_](?=\w)")


def catalog(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the messages of a compiled gettext catalog, each with its translation."""
    data = path.read_bytes()
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    n, originals, translations = struct.unpack_from(f"{order}3I", data, 8)

    def text(table: int, i: int) -> str:
        size, at = struct.unpack_from(f"{order}2I", data, table + 8 * i)
        return data[at : at + size].decode()

    for i in range(1, n):  # the first is the header
        yield text(originals, i), text(translations, i)


def messages(folder: Path, language: str) -> dict[str, set[str]]:
    """Return the translated messages of LibreOffice, each with the modules that have it."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob(f"**/{language}/LC_MESSAGES/*.mo")):
        for original, translated in catalog(path):
            plain = _ACCELERATOR.sub("", translated)
            if len(original) >= LEAST_CHARACTERS and not plain.isascii():
                found.setdefault(plain, set()).add(path.stem)
    return found


def paragraphs(folder: Path, language: str) -> dict[str, set[str]]:
    """Return the translated paragraphs of manual pages, each with the pages that have it."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob(f"**/man/{language}/man*/*.gz")):
        text = gzip.decompress(path.read_bytes()).decode(errors="replace")
        for part in re.split(r"^[.'].*\n|\n\s*\n", text, flags=re.MULTILINE):
            plain = " ".join(_MARKUP.sub("", part).replace("\\-", "-").split())
            if len(plain) >= LEAST_CHARACTERS and not plain.isascii():
                found.setdefault(plain, set()).add(path.name.removesuffix(".gz"))
    sizes = Counter(page for pages in found.values() for page in pages)
    kept = {text: {page for page in pages if sizes[page] >= LEAST_OF_PAGE} for text, pages in found.items()}
    return {text: pages for text, pages in kept.items() if pages}


def parts_of(name: str, data: Path) -> tuple[list[DatasetInstance], list[DatasetInstance]]:
    """Return the training part and the test part of a set."""
    kind, _, language = name.partition("-")
    if kind not in ("messages", "pages"):
        train, test = (list(read_file(str(data / name / f"{part}.{NAMES[name]}.gz"))) for part in ("train", "test"))
        return train, test
    texts = (messages if kind == "messages" else paragraphs)(data / "translations", language)
    if not texts:
        raise SystemExit(f"{name}: unpack the package with dpkg-deb -x below {data / 'translations'}")
    rows = [DatasetInstance(text=text, labels=tuple(sorted(labels))) for text, labels in sorted(texts.items())]
    random.Random(1).shuffle(rows)
    rows = rows[:MOST]
    cut = len(rows) * 9 // 10
    return rows[:cut], rows[cut:]


def accuracy(train: Iterable[DatasetInstance], test: Iterable[DatasetInstance], config: dict[str, Any]) -> float:
    """Return R@1 in percent, of a model that learned the training part once."""
    return 100 * evaluate(train, test, ModelConfig.from_dict(config))["metrics"]["R@1"]


def text(name: str, data: Path) -> dict[str, Any]:
    """Measure one set with both boundaries of words."""
    train, test = parts_of(name, data)
    figures: dict[str, Any] = {
        "set": name,
        "train": len(train),
        "classes": len({x for one in train for x in one.labels}),
    }
    for update in UPDATES:
        for boundaries in ("simple", "unicode"):
            config = {"update": update, "analyzer": {"boundaries": boundaries}}
            figures[f"{update}_{boundaries}"] = accuracy(train, test, config)
    return figures


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


def fields(name: str, data: Path) -> dict[str, Any]:
    """Measure one set with its fields, and with the same texts as one."""
    train, test = ([with_fields(row, name) for row in rows] for rows in parts_of(name, data))
    figures: dict[str, Any] = {"set": name}
    for update in UPDATES:
        figures[f"{update}_joined"] = accuracy(map(joined, train), map(joined, test), {"update": update})
        for weight in (0.5, 1.0):
            config = {"update": update, "analyzer": {"field_weight": weight}}
            figures[f"{update}_fields_{weight:g}"] = accuracy(train, test, config)
    return figures


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


def numbers(name: str, data: Path) -> dict[str, Any]:
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


PARTS: dict[str, tuple[Callable[[str, Path], dict[str, Any]], tuple[str, ...]]] = {
    "text": (text, TEXT),
    "fields": (fields, FIELDS),
    "numbers": (numbers, NUMBERS),
}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description="Accuracy on the inputs that applications send.")
    parser.add_argument("--json", action="store_true", help="print a JSON object per set")
    parser.add_argument("--data", type=Path, help="the folder of the data sets; ABOUND_DATA without it")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--set", action="append", help="only this set; may be repeated")
    options = parser.parse_args()
    data = data_folder(options.data)
    warmup()
    for part, (measure, names) in PARTS.items():
        for name in names:
            if (options.only and part not in options.only) or (options.set and name not in options.set):
                continue
            figures = measure(name, data)
            if options.json:
                print(json.dumps({"part": part} | figures), flush=True)
                continue
            shown = (f"{key} {value:.1f}" if isinstance(value, float) else f"{value}" for key, value in figures.items())
            print(part, *shown, flush=True)


if __name__ == "__main__":
    main()
