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

from abound.cli.file_arguments import CommandFailed
from abound.cli.options import Model, Printed, asks_service, counted, format_time, format_value, print_rows, print_table
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
MAX_PATH = 100  # labels above one
CHANGE = ("from", "to", "kind")
FIELDS = ("label", "name", "description", "parent")  # in a table, all other columns are metadata


Alias = Annotated[bool, typer.Option("--alias/--no-alias", help="Keep the old name as an alias.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]
Name = Annotated[str, typer.Argument(metavar="LABEL")]

labels = typer.Typer(help="Labels of a model, and changes of them.", invoke_without_command=True)


@labels.callback()
@asks_service
def list_labels(
    client: Client,
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
) -> Printed:
    """List the labels that a model knows, how often each was learned, its newest R@1, and its name. Or change labels.

    --prefix and --contains look at labels and names, without regard to case and accents.
    """
    if context.invoked_subcommand is not None:
        return None
    if similar:
        pairs = _similar(client, model)
        return {"similar": pairs}, partial(print_rows, ("label", "similar"), pairs, whole=("label", "similar"))
    answer = client.labels(model, prefix=prefix, contains=contains, sort=sort, limit=limit)
    details, retired = answer["details"], answer.get("retired", ())

    def show() -> None:
        figures = zip(answer["labels"], answer["learned"], answer["recent"], strict=True)
        rows = [
            (
                *(label, f"{n:,}", "" if recent is None else f"{recent:.2f}"),
                *([details.get(label, {}).get("name") or ""] if details else []),
                *(["retired" if label in retired else ""] if retired else []),
            )
            for label, n, recent in figures
        ]
        columns = ("label", "learned", "R@1", *(["name"] if details else []), *([""] if retired else []))
        print_rows(columns, rows, whole=("label",))
        if answer["total"] > len(rows):
            typer.echo(f"{len(rows):,} of {counted(answer['total'], 'label')}", err=True)

    return answer, show


@labels.command("show")
@asks_service
def show_label(client: Client, label: Name, model: Model = "default") -> Printed:
    """Show a label: how often it was learned, its newest R@1, what it is confused with, and its heaviest features."""
    answer = client.label(model, label, limit=10)
    shown = answer | {"features": {one["feature"]: one["weight"] for one in answer["features"]}}
    return answer, partial(print_table, "", shown)


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


def _change(client: Client, model: str, changes: list[dict[str, Any]], dry_run: bool) -> Printed:
    answer = client.change_labels(model, changes, dry_run=dry_run)

    def show() -> None:
        for one in answer.get("effects") or ():
            print_table(one["label"], {name: value for name, value in one.items() if name != "label"})
        typer.echo(f"{counted(answer['changed'], 'label')} {'would be changed' if dry_run else 'changed'}")

    return answer, show


@labels.command()
@asks_service
def rename(
    client: Client,
    old: Annotated[str, typer.Argument(metavar="FROM")],
    new: Annotated[str, typer.Argument(metavar="TO")],
    alias: Alias = True,
    dry_run: DryRun = False,
    model: Model = "default",
) -> Printed:
    """Rename a label, which keeps what it learned."""
    return _change(client, model, [{"kind": "rename", "from": old, "to": new, "alias": alias}], dry_run)


@labels.command()
@asks_service
def merge(
    client: Client,
    old: Annotated[list[str], typer.Argument(metavar="FROM...")],
    into: Annotated[str, typer.Option("--into", metavar="LABEL", help="The label that gets what was learned.")],
    alias: Alias = True,
    dry_run: DryRun = False,
    model: Model = "default",
) -> Printed:
    """Merge labels into another one."""
    changes = [{"kind": "merge", "from": one, "to": into, "alias": alias} for one in old]
    return _change(client, model, changes, dry_run)


@labels.command()
@asks_service
def retire(client: Client, label: Name, dry_run: DryRun = False, model: Model = "default") -> Printed:
    """Never suggest a label again. It keeps what it learned."""
    return _change(client, model, [{"kind": "retire", "from": label}], dry_run)


@labels.command()
@asks_service
def revive(client: Client, label: Name, dry_run: DryRun = False, model: Model = "default") -> Printed:
    """Suggest a retired label again."""
    return _change(client, model, [{"kind": "revive", "from": label}], dry_run)


@labels.command("changes")
@asks_service
def list_changes(client: Client, model: Model = "default") -> Printed:
    """List the newest 1,000 changes, and how to undo each."""
    answer = client.label_changes(model)
    rows = [
        (format_time(one["time"]), one["kind"], one["from"], format_value(one["to"]), one["by"] or "-", one["undo"])
        for one in answer["changes"]
    ]
    return answer, partial(print_rows, ("time", "kind", "from", "to", "key", "to undo it"), rows, whole=("from", "to"))


@labels.command()
@asks_service
def apply(
    client: Client,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .csv or .tsv with the columns from, to and kind.")],
    dry_run: DryRun = False,
    run: Annotated[str, typer.Option("--run", help="Name of this run: a file is applied once under each name.")] = "",
    model: Model = "default",
) -> Printed:
    """Make the changes of a file, in its order: a line renames, merges, retires, revives or splits a label.

    The lines of a split follow each other, one for each new label. A request has 500 changes. After an error those
    before it stay, and the command can be repeated: they are not made again. With --dry-run each request is checked
    against the present labels.
    """
    from abound.client import Refused

    rows, totals = _changes(file), {"changes": 0, "changed": 0}
    with progress_bar("changes") as progress:
        while some := list(itertools.islice(rows, BATCH)):
            hashed = hashlib.blake2b(json.dumps([run, totals["changes"], some]).encode(), digest_size=16)
            try:
                answer = client.change_labels(model, some, dry_run=dry_run, key=hashed.hexdigest())
            except Refused as error:
                raise CommandFailed(f"{file}: after {counted(totals['changes'], 'change')}: {error}") from error
            totals = {"changes": totals["changes"] + len(some), "changed": totals["changed"] + answer["changed"]}
            progress.set_text(f"{totals['changes']:,}")
    before = totals["changes"] - totals["changed"]
    sentence = f"{counted(totals['changed'], 'change')} {'would be made' if dry_run else 'made'}"
    return totals, sentence + (f", {before:,} were made before" if before else "")


def _changes(file: str) -> Iterator[dict[str, Any]]:
    """Yield the changes of a table; the lines of a split are one change."""
    from abound.datasets.files import resolve_file

    options = resolve_file(file, ReadOptions(header=True))
    if options.format not in ("csv", "tsv"):
        raise Malformed(f"{file}: changes are read from .csv and .tsv")
    rows = _cells(file, options, CHANGE)
    for (kind, label), some in itertools.groupby(rows, lambda one: (one.get("kind"), one["from"])):
        if kind == "split":
            yield {"kind": kind, "from": label, "to": [one.get("to", "") for one in some]}
        else:
            yield from [{name: cell for name, cell in one.items() if name in CHANGE} for one in some]


@partial(reads_files, names=DIALECT)
@asks_service
def register(
    client: Client,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .jsonl, .csv or .tsv, SKOS as .ttl, .rdf, .nt or .jsonld, or - for JSON lines from stdin.",
        ),
    ],
    options: ReadOptions,
    model: Model = "default",
    learn: Annotated[
        bool, typer.Option("--learn/--no-learn", help="Learn each name once, as an instance of its label.")
    ] = True,
    source: Annotated[str | None, typer.Option("--source", help="Source to store with each event.")] = None,
    language: Annotated[str, typer.Option("--language", help="SKOS: language of the texts.")] = "en",
    concept_label: Annotated[
        ConceptId, typer.Option("--concept-label", help="SKOS: what becomes the label of a concept.")
    ] = "uri",
) -> Printed:
    """Register labels with a name, a description, a parent and metadata.

    A line is {"label": "grain", "name": "Grain", "description": "...", "parent": "...", "metadata": {...}}. A table has
    the columns label, name, description and parent, in this order without a header; its other columns are metadata.
    Empty cells are left out. In JSON a label may have aliases, a list of other names.

    A concept of SKOS gives its preferred label as the name, its definition as the description, its alternative labels
    as aliases, and its first broader concept as the parent. Parents that close a cycle are left out. SKOS needs
    abound[skos].

    A request has 500 labels. After an error the requests before it stay; the command can be repeated.
    """
    read: Counter[str] = Counter()
    offset, say = None, partial(typer.echo, err=True)
    is_skos = skos_format(file)
    rows = read_concepts(file, language, concept_label, say) if is_skos else _registrations(file, options)
    rows = iter(_top_down(list(rows)))
    while some := list(itertools.islice(rows, BATCH)):
        offset = client.register_labels(model, some, learn=learn, source=source)["offset"]
        read.update(field for one in some for field in FIELDS if one.get(field))
        read["aliases"] += sum(len(one.get("aliases") or ()) for one in some)
    n, counts = read["label"], {f"{field}s": read[field] for field in FIELDS[1:]} | {"aliases": read["aliases"]}
    said = ", ".join(counted(read[field], field) for field in FIELDS[1:])
    said += f", {counted(read['aliases'], 'alias', 'aliases')}"
    return {"registered": n} | counts | {"offset": offset}, f"{counted(n, 'label')} registered: {said}"


def _top_down(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parents before their children. So no request closes a cycle with parents that a later one changes."""
    parents = {str(one["label"]): str(one.get("parent") or "") for one in rows}

    def depth(row: dict[str, Any]) -> int:
        n, label = 0, str(row["label"])
        while n < MAX_PATH and (label := parents.get(label, "")):
            n += 1
        return n

    return sorted(rows, key=depth)


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
