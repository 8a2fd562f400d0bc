"""Text in many languages: R@1 with ``analyzer.boundaries`` simple and unicode, for both update rules.

The English sets are those of ``benchmarks.sets``. The others are made from Debian packages, unpacked below
``DIR/translations``:

- ``messages-LANGUAGE``: which module of LibreOffice does a message come from? (``libreoffice-l10n-LANGUAGE``)
- ``pages-LANGUAGE``: which manual page does a paragraph come from? (``manpages-LANGUAGE``)

``functions-python`` asks which module of Python's standard library a function comes from; the text is its source.

A tenth of the instances is the test part. All of a set is in one random order.
"""

from __future__ import annotations

import ast
import gzip
import random
import re
import struct
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from abound.core.instances.data_formats import DatasetInstance
from benchmarks.inputs import parts
from benchmarks.inputs.parts import UPDATES, accuracy

ENGLISH = ("clinc150", "reuters21578", "newsgroups20")
MESSAGES = ("zh_CN", "ja", "th", "hi", "ar", "de", "fi")
PAGES = ("zh_CN", "ja", "de", "fi")
SETS = (*ENGLISH, *(f"messages-{one}" for one in MESSAGES), *(f"pages-{one}" for one in PAGES))

MOST = 20_000
"""Instances of a translated set."""

LEAST_CHARACTERS, LEAST_OF_PAGE = 15, 10
"""Shorter texts, and pages with fewer paragraphs, are left out."""

MOST_OF_FUNCTION = 1000
"""Characters of a function that are used."""

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


def functions() -> dict[str, set[str]]:
    """Return the functions of Python's standard library as source, each with the modules that have it."""
    found: dict[str, set[str]] = {}
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("**/*.py")):
        module = path.relative_to(library).parts[0].removesuffix(".py")
        if module in sys.stdlib_module_names:
            source = path.read_bytes()
            with suppress(SyntaxError):  # some test files of Python are not valid Python
                for node in ast.walk(ast.parse(source)):
                    if isinstance(node, ast.FunctionDef):
                        text = ast.get_source_segment(source.decode(errors="replace"), node) or ""
                        found.setdefault(text[:MOST_OF_FUNCTION], set()).add(module)
    return found


def parts_of(name: str, data: Path) -> tuple[list[DatasetInstance], list[DatasetInstance]]:
    """Return the training part and the test part of a set."""
    kind, _, language = name.partition("-")
    if kind not in ("messages", "pages", "functions"):
        return parts.parts_of(name, data)
    if kind == "functions":
        texts = functions()
    else:
        texts = (messages if kind == "messages" else paragraphs)(data / "translations", language)
    if not texts:
        raise SystemExit(f"{name}: unpack the package with dpkg-deb -x below {data / 'translations'}")
    rows = [DatasetInstance(text=text, labels=tuple(sorted(labels))) for text, labels in sorted(texts.items())]
    random.Random(1).shuffle(rows)
    rows = rows[:MOST]
    cut = len(rows) * 9 // 10
    return rows[:cut], rows[cut:]


def measure(name: str, data: Path) -> dict[str, Any]:
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
