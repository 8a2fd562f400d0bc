"""``abound labels`` and ``abound register``: the labels of a model, and their names."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Model,
    Url,
    counted,
    print_json,
    print_result,
    print_rows,
)
from abound.cli.skos import FORMATS as SKOS_FORMATS
from abound.cli.skos import ConceptId, read_concepts
from abound.cli.skos import format_of as skos_format
from abound_core.errors import Malformed
from abound_core.instances.names import normalized

if TYPE_CHECKING:
    from abound.client import Client

BATCH = 500  # labels of one request to register
PAGE = 10_000  # labels of one answer
FIELDS = ("label", "name", "description", "parent")  # in a table, all other columns are metadata


def list_labels(
    model: Model = "default",
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only labels that begin with this.")] = None,
    contains: Annotated[
        str | None, typer.Option("--contains", help="Only labels that contain this, or whose name does.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of labels.")] = 100,
    similar: Annotated[
        bool, typer.Option("--similar", help="Only pairs that differ in case, accents or spaces only.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List the labels that a model knows, how often each was learned, and their names."""
    from abound.client import Client

    with Client(url, key=key) as client:
        if similar:
            pairs = _similar(client, model)
            if as_json:
                print_json({"similar": pairs})
            else:
                print_rows(("label", "similar"), pairs, whole=("label", "similar"))
            return
        answer = client.labels(model, prefix=prefix, contains=contains, limit=limit)
    if as_json:
        print_json(answer)
        return
    columns: tuple[str, ...] = ("label", "learned")
    rows: list[tuple[str, ...]] = [
        (label, f"{n:,}") for label, n in zip(answer["labels"], answer["learned"], strict=True)
    ]
    if answer["details"]:
        columns = (*columns, "name")
        rows = [(*row, answer["details"].get(row[0], {}).get("name") or "") for row in rows]
    print_rows(columns, rows, whole=("label",))
    if answer["total"] > len(rows):
        typer.echo(f"{len(rows):,} of {counted(answer['total'], 'label')}", err=True)


def _similar(client: Client, model: str) -> list[tuple[str, ...]]:
    """Return each label with the first one that equals it but for case, accents and spaces."""
    first: dict[str, str] = {}
    pairs: list[tuple[str, ...]] = []
    for offset in itertools.count(0, PAGE):
        labels = client.labels(model, limit=PAGE, offset=offset)["labels"]
        for label in labels:
            letters = unicodedata.normalize("NFKD", normalized(label).casefold())
            same = "".join([one for one in letters if not (one.isspace() or unicodedata.combining(one))])
            if first.setdefault(same, label) != label:
                pairs.append((first[same], label))
        if len(labels) < PAGE:
            return pairs
    return pairs


def register(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .jsonl, .csv or .tsv, SKOS as .ttl, .rdf, .nt or .jsonld, or - for JSON lines from stdin.",
        ),
    ],
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    learn: Annotated[
        bool, typer.Option("--learn/--no-learn", help="Learn each name once, as an instance of its label.")
    ] = True,
    source: Annotated[str | None, typer.Option("--source", help="Source to store with each event.")] = None,
    language: Annotated[str, typer.Option("--language", help="SKOS: language of the texts.")] = "en",
    concept_label: Annotated[
        ConceptId, typer.Option("--concept-label", help="SKOS: what becomes the label of a concept.")
    ] = "uri",
    as_json: AsJson = False,
) -> None:
    """Register labels with a name, a description, a parent and metadata.

    A line is {"label": "grain", "name": "Grain", "description": "...", "parent": "...", "metadata": {...}}. A table has
    the columns label, name, description and parent; its other columns are metadata. Empty cells are left out.

    A concept of SKOS gives its preferred label as the name, its alternative labels and definition as the description,
    and its first broader concept as the parent. SKOS needs abound[skos].

    A request has 500 labels. After an error the requests before it stay; the command can be repeated.
    """
    from abound.client import Client

    n, offset = 0, None
    with Client(url, key=key) as client:
        rows = read_concepts(file, language, concept_label) if skos_format(file) else _registrations(file)
        while some := list(itertools.islice(rows, BATCH)):
            offset = client.register_labels(model, some, learn=learn, source=source)["offset"]
            n += len(some)
    print_result({"registered": n, "offset": offset}, f"{counted(n, 'label')} registered", as_json)


def _registrations(file: str) -> Iterator[dict[str, Any]]:
    """Yield the registrations of a file. Raises Malformed, with the line, where one cannot be read."""
    from abound.datasets.files import format_of

    form, _ = format_of(file)
    if form == "csv" or form == "tsv":
        yield from _rows(file, tabs=form == "tsv")
        return
    if form != "jsonl":
        raise Malformed(
            f"{file}: labels are read from .jsonl, .csv and .tsv, optionally followed by .gz or .zst, "
            f"and from SKOS in {', '.join(SKOS_FORMATS)}"
        )
    for number, line in enumerate(_decoded(file), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"{file}: line {number}: not JSON: {error}") from None
        if not isinstance(found, dict) or "label" not in found:
            raise Malformed(f"{file}: line {number}: a line is an object with the field label")
        yield found


def _decoded(file: str) -> Iterator[str]:
    from abound.datasets.files import read_lines

    for number, line in enumerate(read_lines(file), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"{file}: line {number}: not UTF-8") from None


def _rows(file: str, tabs: bool) -> Iterator[dict[str, Any]]:
    from abound.datasets.files import read_lines
    from abound_core.instances.data_formats import at_line
    from abound_core.instances.tables import CsvRows

    rows = CsvRows(read_lines(file), tabs=tabs)
    try:
        names = next(rows, [])
        if "label" not in names:
            raise Malformed("the table has no column label; its first line names the columns")
        for cells in rows:
            if not cells:
                continue
            if len(cells) > len(names):
                raise Malformed("more cells than columns")
            given = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
            metadata = {name: cell for name, cell in given.items() if name not in FIELDS}
            found: dict[str, Any] = {name: given[name] for name in FIELDS if name in given}
            if "label" not in found:
                raise Malformed("the label is empty")
            yield found | ({"metadata": metadata} if metadata else {})
    except Malformed as error:
        raise at_line(file, rows.line, error) from None
