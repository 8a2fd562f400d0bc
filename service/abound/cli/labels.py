"""``abound labels`` and ``abound register``: the labels of a model, and their names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

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
from abound.cli.read_options import reads_files
from abound.cli.skos import FORMATS as SKOS_FORMATS
from abound.cli.skos import ConceptId, read_concepts
from abound.cli.skos import format_of as skos_format
from abound_core.errors import Malformed
from abound_core.instances.read_options import DIALECT, ReadOptions

BATCH = 500  # labels of one request
FIELDS = ("label", "name", "description", "parent")  # in a table, all other columns are metadata


def list_labels(
    model: Model = "default",
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only labels that begin with this.")] = None,
    contains: Annotated[str | None, typer.Option("--contains", help="Only labels that contain this.")] = None,
    sort: Annotated[
        Literal["first", "count", "name", "R@1"], typer.Option("--sort", help="Order of the labels.")
    ] = "first",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of labels.")] = 100,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List the labels that a model knows, how often each was learned, its newest R@1, and its name.

    --prefix and --contains look at labels and names, without regard to case and accents.
    """
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.labels(model, prefix=prefix, contains=contains, sort=sort, limit=limit)
    if as_json:
        print_json(answer)
        return
    columns: tuple[str, ...] = ("label", "learned", "R@1")
    figures = zip(answer["labels"], answer["learned"], answer["recent"], strict=True)
    rows: list[tuple[str, ...]] = [
        (label, f"{n:,}", "" if recent is None else f"{recent:.2f}") for label, n, recent in figures
    ]
    if answer["details"]:
        columns = (*columns, "name")
        rows = [(*row, answer["details"].get(row[0], {}).get("name") or "") for row in rows]
    print_rows(columns, rows, whole=("label",))
    if answer["total"] > len(rows):
        typer.echo(f"{len(rows):,} of {counted(answer['total'], 'label')}", err=True)


@partial(reads_files, names=DIALECT)
def register(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .jsonl, .csv or .tsv, SKOS as .ttl, .rdf, .nt or .jsonld, or - for JSON lines from stdin.",
        ),
    ],
    options: ReadOptions,
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
    the columns label, name, description and parent, in this order without a header; its other columns are metadata.
    Empty cells are left out.

    A concept of SKOS gives its preferred label as the name, its alternative labels and definition as the description,
    and its first broader concept as the parent. SKOS needs abound[skos]. Parents that close a cycle are left out.

    A request has 500 labels. After an error the requests before it stay; the command can be repeated.
    """
    from abound.client import Client

    read: Counter[str] = Counter()
    offset, say = None, partial(typer.echo, err=True)
    with Client(url, key=key) as client:
        is_skos = skos_format(file)
        rows = read_concepts(file, language, concept_label, say) if is_skos else _registrations(file, options)
        while some := list(itertools.islice(rows, BATCH)):
            offset = client.register_labels(model, some, learn=learn, source=source)["offset"]
            read.update(field for one in some for field in FIELDS if one.get(field))
    n, *more = (read[field] for field in FIELDS)
    said = ", ".join(counted(number, field) for number, field in zip(more, FIELDS[1:], strict=True))
    counts = {f"{field}s": number for number, field in zip(more, FIELDS[1:], strict=True)}
    print_result({"registered": n} | counts | {"offset": offset}, f"{counted(n, 'label')} registered: {said}", as_json)


def _registrations(file: str, options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the registrations of a file. Raises Malformed, with the line, where one cannot be read."""
    from abound.datasets.files import read_lines, resolve_file
    from abound_core.instances.data_formats import at_line
    from abound_core.instances.tables import record_of

    options = resolve_file(file, options)
    if options.format == "csv" or options.format == "tsv":
        yield from _rows(file, options)
        return
    if options.format != "jsonl":
        raise Malformed(
            f"{file}: labels are read from .jsonl, .csv and .tsv, optionally followed by .gz or .zst, "
            f"and from SKOS in {', '.join(SKOS_FORMATS)}"
        )
    for number, line in enumerate(read_lines(file, options), start=1):
        if not line.strip():
            continue
        try:
            found = record_of(line)
            if "label" not in found:
                raise Malformed("a line is an object with the field label")
        except Malformed as error:
            raise at_line(file, number, error) from None
        yield found


def _rows(file: str, options: ReadOptions) -> Iterator[dict[str, Any]]:
    from abound.datasets.files import read_table
    from abound_core.instances.data_formats import at_line
    from abound_core.instances.tables import ABSENT, column_names, without_brackets

    names: list[str] = []
    for line, cells in read_table(file, options):
        if not names:
            names = column_names(cells, options) if options.header else [*FIELDS, *map(str, range(5, len(cells) + 1))]
            if "label" not in names:
                raise at_line(file, line, "the table has no column label; its first line names the columns")
            if options.header:
                continue
        if len(cells) > len(names):
            raise at_line(file, line, "more cells than columns")
        given = {name: cell for name, cell in zip(names, cells, strict=False) if cell not in ABSENT}
        metadata = {name: cell for name, cell in given.items() if name not in FIELDS}
        found: dict[str, Any] = {name: without_brackets(given[name]) for name in FIELDS if name in given}
        if "label" not in found:
            raise at_line(file, line, "the label is empty")
        yield found | ({"metadata": metadata} if metadata else {})
