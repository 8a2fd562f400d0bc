"""``abound labels`` and ``abound register``: the labels of a model, their names, and changes of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Model,
    Url,
    counted,
    format_time,
    format_value,
    print_json,
    print_result,
    print_rows,
    print_table,
)
from abound.cli.progress import progress_bar
from abound.cli.read_options import reads_files
from abound.cli.skos import FORMATS as SKOS_FORMATS
from abound.cli.skos import ConceptId, read_concepts
from abound.cli.skos import format_of as skos_format
from abound_core.errors import Malformed
from abound_core.instances.read_options import DIALECT, ReadOptions

if TYPE_CHECKING:
    from abound.client import Client

BATCH = 500  # labels of one request to register
PAGE = 10_000  # labels of one answer
MOST_CHANGES = 1_000_000  # of a file
FIELDS = ("label", "name", "description", "parent")  # in a table, all other columns are metadata


Alias = Annotated[bool, typer.Option("--alias/--no-alias", help="Keep the old name as an alias.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]
Name = Annotated[str, typer.Argument(metavar="LABEL")]

labels = typer.Typer(help="Labels of a model, and changes of them.", invoke_without_command=True)


@labels.callback()
def list_labels(
    context: typer.Context,
    model: Model = "default",
    prefix: Annotated[str | None, typer.Option("--prefix", help="Only labels that begin with this.")] = None,
    contains: Annotated[str | None, typer.Option("--contains", help="Only labels that contain this.")] = None,
    sort: Annotated[
        Literal["first", "count", "name", "R@1"], typer.Option("--sort", help="Order of the labels.")
    ] = "first",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of labels.")] = 100,
    similar: Annotated[
        bool, typer.Option("--similar", help="Only pairs that differ in case, accents or spaces only.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List the labels that a model knows, how often each was learned, its newest R@1, and its name. Or change labels.

    --prefix and --contains look at labels and names, without regard to case and accents.
    """
    from abound.client import Client

    if context.invoked_subcommand is not None:
        return

    with Client(url, key=key) as client:
        if similar:
            pairs = _similar(client, model)
            if as_json:
                print_json({"similar": pairs})
            else:
                print_rows(("label", "similar"), pairs, whole=("label", "similar"))
            return
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


def _similar(client: Client, model: str) -> list[tuple[str, ...]]:
    """Return each label with the first one that equals it but for case, accents and spaces."""
    from abound_core.instances.names import normalized

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


def _change(changes: list[dict[str, Any]], model: str, url: str, key: str | None, dry_run: bool, as_json: bool) -> None:
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.change_labels(model, changes, dry_run=dry_run)
    if as_json:
        print_json(answer)
        return
    for one in answer.get("effects") or ():
        print_table(one["label"], {name: value for name, value in one.items() if name != "label"})
    typer.echo(f"{counted(answer['changed'], 'label')} {'would be changed' if dry_run else 'changed'}")


@labels.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="FROM")],
    new: Annotated[str, typer.Argument(metavar="TO")],
    alias: Alias = True,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Rename a label, which keeps what it learned."""
    _change([{"kind": "rename", "from": old, "to": new, "alias": alias}], model, url, key, dry_run, as_json)


@labels.command()
def merge(
    old: Annotated[list[str], typer.Argument(metavar="FROM...")],
    into: Annotated[str, typer.Option("--into", metavar="LABEL", help="The label that gets what was learned.")],
    alias: Alias = True,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Merge labels into another one."""
    changes = [{"kind": "merge", "from": one, "to": into, "alias": alias} for one in old]
    _change(changes, model, url, key, dry_run, as_json)


def _add_command(kind: str, help_text: str) -> None:
    @labels.command(kind, help=help_text)
    def change(
        label: Name,
        dry_run: DryRun = False,
        url: Url = DEFAULT_URL,
        model: Model = "default",
        key: Key = None,
        as_json: AsJson = False,
    ) -> None:
        _change([{"kind": kind, "from": label}], model, url, key, dry_run, as_json)


_add_command("retire", "Never suggest a label again. It keeps what it learned.")
_add_command("revive", "Suggest a retired label again.")


@labels.command("changes")
def list_changes(url: Url = DEFAULT_URL, model: Model = "default", key: Key = None, as_json: AsJson = False) -> None:
    """List the newest 1,000 changes, and how to undo each."""
    from abound.client import Client

    with Client(url, key=key) as client:
        answer = client.label_changes(model)
    if as_json:
        print_json(answer)
        return
    rows = [
        (format_time(one["time"]), one["kind"], one["from"], format_value(one["to"]), one["by"] or "-", one["undo"])
        for one in answer["changes"]
    ]
    print_rows(("time", "kind", "from", "to", "key", "to undo it"), rows, whole=("from", "to"))


@labels.command()
def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .csv or .tsv with the columns from, to and kind.")],
    dry_run: DryRun = False,
    run: Annotated[str, typer.Option("--run", help="Name of this run: a file is applied once under each name.")] = "",
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make the changes of a file, in its order: a line renames, merges, retires, revives or splits a label.

    The lines of a split follow each other, one for each new label. The file has at most 1,000,000 lines. A request has
    500 changes. After an error those before it stay, and the command can be repeated: they are not made again. With
    --dry-run each request is checked against the present labels.
    """
    from abound.client import Client

    rows, totals = _changes(file), {"changes": 0, "changed": 0}
    with Client(url, key=key) as client, progress_bar("changes") as progress:
        while some := list(itertools.islice(rows, BATCH)):
            hashed = hashlib.blake2b(json.dumps([run, totals["changes"], some]).encode(), digest_size=16)
            answer = client.change_labels(model, some, dry_run=dry_run, key=hashed.hexdigest())
            totals = {"changes": totals["changes"] + len(some), "changed": totals["changed"] + answer["changed"]}
            progress.set_text(f"{totals['changes']:,}")
    before = totals["changes"] - totals["changed"]
    sentence = f"{counted(totals['changed'], 'change')} {'would be made' if dry_run else 'made'}"
    print_result(totals, sentence + (f", {before:,} were made before" if before else ""), as_json)


def _changes(file: str) -> Iterator[dict[str, Any]]:
    """Yield the changes of a table; the lines of a split are one change."""
    from abound.datasets.files import resolve_file

    waiting: dict[str, Any] | None = None
    options = resolve_file(file, ReadOptions(header=True))
    if options.format not in ("csv", "tsv"):
        raise Malformed(f"{file}: changes are read from .csv and .tsv")
    for number, cells in enumerate(_cells(file, options, ("from", "to", "kind"))):
        if number == MOST_CHANGES:
            raise Malformed(f"{file}: a file has at most {MOST_CHANGES:,} changes")
        change: dict[str, Any] = {name: cells[name] for name in ("kind", "from", "to") if name in cells}
        if change.get("kind") == "split":
            if waiting is not None and waiting["from"] == change["from"]:
                waiting["to"] += [change.get("to", "")]
                continue
            change["to"] = [change.get("to", "")]
        if waiting is not None:
            yield waiting
        waiting = change if change.get("kind") == "split" else None
        if waiting is None:
            yield change
    if waiting is not None:
        yield waiting


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
        for given in _cells(file, options, FIELDS):
            metadata = {name: cell for name, cell in given.items() if name not in FIELDS}
            found: dict[str, Any] = {name: given[name] for name in FIELDS if name in given}
            yield found | ({"metadata": metadata} if metadata else {})
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


def _cells(file: str, options: ReadOptions, fields: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield the cells of each row of a table that are not empty, by column. The first of the ``fields`` never is."""
    from abound.datasets.files import read_table
    from abound_core.instances.data_formats import at_line
    from abound_core.instances.tables import ABSENT, column_names, without_brackets

    names: list[str] = []
    needed = fields[0]
    for line, cells in read_table(file, options):
        if not names:
            more = map(str, range(len(fields) + 1, len(cells) + 1))
            names = column_names(cells, options) if options.header else [*fields, *more]
            if needed not in names:
                raise at_line(file, line, f"the table has no column {needed}; its first line names the columns")
            if options.header:
                continue
        if len(cells) > len(names):
            raise at_line(file, line, "more cells than columns")
        given = {name: cell for name, cell in zip(names, cells, strict=False) if cell not in ABSENT}
        if needed not in given:
            raise at_line(file, line, f"the {needed} is empty")
        yield {name: without_brackets(cell) if name in fields else cell for name, cell in given.items()}
