"""``abound learn`` and ``abound classify``: stream files through a running service."""

from __future__ import annotations

import csv
import json
import signal
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from abound.cli.accuracy import RunningAccuracy, format_score
from abound.cli.file_arguments import CommandFailed
from abound.cli.options import (
    DEFAULT_URL,
    AsJson,
    Key,
    Model,
    Url,
    counted,
    error_console,
    print_json,
)
from abound.cli.progress import ProgressBar, progress_bar
from abound.cli.read_options import DryRun, Misread, reads_files, show_files
from abound_core.errors import AboundError, Malformed, WrongOption
from abound_core.instances.read_options import ReadOptions
from abound_core.rank_sums import rank_in

if TYPE_CHECKING:
    from abound.client import Client, Refused
    from abound_core.instances.data_formats import DatasetInstance

SHOWN_REFUSALS = 5  # further refused lines are only counted
POLL_SECONDS = 0.25  # between two requests to a service that is starting
ENDING_STATUSES = (401, 403, 404, 429, 500, 502, 503, 504)  # end the stream: the next line would be refused, too
OUTCOME_UNKNOWN = (500, 502, 504)  # the request may have been processed, in part or as a whole


FLUSH_SECONDS = 1.0  # longest wait of an instance for others to fill its request
CSV_COLUMNS = ("line", "rank", "label", "score", "probability", "error")
DECISION_COLUMNS = ("decision", "audit", "candidates", "reachable")  # of a model that decides
READ_AHEAD = 64  # instances that are read while others are being sent


Skip = Annotated[int, typer.Option("--skip", min=0, help="Skip this many instances.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many instances.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count lines that are no instances.")]


class StreamEnded(AboundError):
    """A stream ended before its files did."""


class StreamStatistics:
    """Counts and accuracy of the lines of a stream. ``vector`` is the column of the vectors, if one was named."""

    def __init__(self, vector: str | None) -> None:
        self.vector = vector
        self.accuracy = RunningAccuracy()
        self.counts: Counter[str] = Counter()
        self.offset: str | None = None
        self.is_warned = False
        self.started = time.perf_counter()

    def summary(self, done: str) -> dict[str, Any]:
        """Return counts, accuracy and speed as one JSON object. ``done`` is the name of the count of answered lines."""
        seconds = time.perf_counter() - self.started
        return {
            done: self.counts["answered"],
            "refused": self.counts["refused"],
            "unlabelled": self.counts["unlabelled"],
            "bad": self.counts["bad"],
            "accuracy": {"all": self.accuracy.all(), "window": self.accuracy.window()},
            "offset": self.offset,
            "seconds": round(seconds, 3),
            "per_second": round(self.counts["answered"] / seconds, 1) if seconds > 0 else None,
        }


@reads_files
def learn(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Data set files or URLs, or - for standard input.")
    ],
    options: ReadOptions,
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    keyed: Annotated[
        bool,
        typer.Option(
            "--keyed", help="Give every line without an idempotency key one, so that broken requests can be retried."
        ),
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="Source to store with each event that has none.")
    ] = None,
    none: Annotated[
        bool,
        typer.Option("--none", help="Learn instances without labels: no label fits them. Otherwise they are skipped."),
    ] = False,
    skip: Skip = 0,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    dry_run: DryRun = False,
    yes: Misread = False,
    as_json: AsJson = False,
) -> None:
    """Stream labelled instances to a running service, and show the accuracy before learning each.

    A request holds a thousand instances, or those read within a second. Instances without labels are skipped and
    counted. A report on the files goes to standard error first. Exit code 1 if a line was refused or nothing was
    learned. Ctrl-C and SIGTERM end the command at once. It then reports how many instances are done, and from which
    line on the outcome is unknown.
    """
    read = show_files(files, options, dry_run, yes, as_json, none)
    prefix = uuid.uuid4().hex

    def line_of(instance: DatasetInstance, number: int) -> bytes | None:
        if not (instance.is_labelled or none):
            return None
        extra: dict[str, Any] = {} if instance.is_labelled else {"none": True}
        extra |= {"key": f"{prefix}:{number}"} if keyed and instance.key is None else {}
        extra |= {"source": source} if source and instance.source is None else {}
        return _with_fields(instance.to_json(), extra)

    def note(answer: dict[str, Any], instance: DatasetInstance, streamed: StreamStatistics) -> None:
        streamed.offset = answer.get("offset", streamed.offset)
        if answer.get("applied") and instance.complete_labels:
            streamed.accuracy.add(answer.get("rank"))

    streamed = StreamStatistics(options.vector)
    with _client(url, key, model) as client:
        _run(
            "learn",
            _instances(files, read, skip, limit, _bad_lines(streamed, skip_bad)),
            line_of,
            lambda lines: client.learn_stream(model, lines, keyed=keyed),
            note,
            streamed,
        )
    _finish(streamed.summary("learned"), "learned", streamed, as_json, sys.stdout)
    if not streamed.counts["answered"]:
        raise StreamEnded(f"nothing was learned: {_why_nothing('learn', files, streamed)}")


@reads_files
def classify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A data set file or URL, or - for standard input.")],
    options: ReadOptions,
    url: Url = DEFAULT_URL,
    model: Model = "default",
    key: Key = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Maximum number of labels in an answer.")] = 10,
    threshold: Annotated[float | None, typer.Option("--threshold", help="Minimum score of a label.")] = None,
    min_probability: Annotated[
        float | None,
        typer.Option("--min-probability", min=0.0, max=1.0, help="Minimum probability of a label."),
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", help="Rank only this label and those below it; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="Do not rank this label and those below it; repeatable.")
    ] = None,
    known: Annotated[
        list[str] | None,
        typer.Option("--known", help="Rank the other labels, given this known one; repeatable."),
    ] = None,
    rare: Annotated[bool, typer.Option("--rare", help="Order seldom learned labels higher.")] = False,
    levels: Annotated[
        bool, typer.Option("--levels", help="Show the labels above each label, or the surest one above all.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show which features contributed to each label.")] = False,
    names: Annotated[bool, typer.Option("--names", help="Show the names of registered labels.")] = False,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot/--no-zero-shot", help="Rank registered labels that have no instance yet.")
    ] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the answers to this file.")] = None,
    form: Annotated[
        Literal["jsonl", "csv"] | None,
        typer.Option("--output-format", help="Format of the answers.  [csv if the output ends in .csv, else jsonl]"),
    ] = None,
    skip: Skip = 0,
    limit: Limit = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Classify the instances of a file and write one JSON answer per line, in order, with the ``line`` in the file.

    As CSV, each label of an answer is a row: line of the instance, rank, label, score, probability, the error of a
    refused line, and with --names the name. An instance without labels has one row without a label. A model with
    decide adds decision, audit, candidates and reachable to each row, candidates as a JSON array.

    If the instances have labels, the accuracy over the ``k`` labels of each answer is shown. The summary goes to
    standard output if the answers go to a file, else to standard error. Exit code 1 if a line was refused or nothing
    was classified.
    """
    as_csv = form == "csv" or (form is None and output is not None and output.suffix == ".csv")
    if as_csv and (explain or levels):
        raise typer.BadParameter("explanations and levels are written as JSON only", param_hint="--output-format")
    asked = {"threshold": threshold, "min_probability": min_probability, "include": include, "exclude": exclude}
    asked["known"] = known
    asking: dict[str, Any] = {"k": k, "explain": explain, "levels": levels, "names": names, "zero_shot": zero_shot}
    asking |= {"rare": True} if rare else {}
    asking |= {name: value for name, value in asked.items() if value is not None}
    streamed = StreamStatistics(options.vector)
    with _client(url, key, model) as client, ExitStack() as stack:
        out: TextIO = stack.enter_context(_opened(output)) if output else sys.stdout
        columns = [*CSV_COLUMNS, *(["name"] if names else [])]
        columns += DECISION_COLUMNS if client.describe(model)["config"]["decide"] else ()
        table = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
        if as_csv:
            table.writeheader()

        def note(answer: dict[str, Any], instance: DatasetInstance, streamed: StreamStatistics) -> None:
            streamed.offset = answer.get("offset", streamed.offset)
            if "labels" in answer and instance.complete_labels:
                streamed.accuracy.add(rank_in((item["label"] for item in answer["labels"]), instance.complete_labels))
            if as_csv:
                table.writerows(_csv_rows(answer, instance.line))
            else:
                out.write(json.dumps(answer | {"line": instance.line}, ensure_ascii=False) + "\n")

        _run(
            "classify",
            _instances([file], [options], skip, limit, _bad_lines(streamed, skip_bad)),
            lambda instance, number: _with_fields(instance.to_json(labels=False), asking),
            lambda lines: client.classify_stream(model, lines),
            note,
            streamed,
            hidden=out is sys.stdout and sys.stdout.isatty(),
        )
    _finish(streamed.summary("classified"), "classified", streamed, as_json, sys.stdout if output else sys.stderr)
    if not streamed.counts["answered"]:
        raise StreamEnded(f"nothing was classified: {_why_nothing('classify', [file], streamed)}")


def _opened(output: Path) -> TextIO:
    try:
        return output.open("w", encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {output}: {error.strerror}") from error


def _csv_rows(answer: dict[str, Any], line: int) -> Iterator[dict[str, Any]]:
    row = {"line": line, "error": answer.get("detail"), "decision": answer.get("decision")}
    row |= {name: json.dumps(answer[name], ensure_ascii=False) for name in DECISION_COLUMNS[1:] if name in answer}
    for rank, one in enumerate(answer.get("labels") or (), start=1):
        yield row | one | {"rank": rank}
    if not answer.get("labels"):
        yield row


@contextmanager
def _client(url: str, key: str | None, model: str) -> Iterator[Client]:
    """Provide a client once the service is ready and has the model. Waits for a starting service, as streams do."""
    from abound.client import Client, Refused
    from abound.client.retries import MAX_WAIT, NOT_READY

    deadline = time.monotonic() + MAX_WAIT
    with Client(url, key=key) as client:
        while True:
            try:
                client.describe(model)
                break
            except Refused as error:
                if error.problem.get("type") != NOT_READY or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)
        yield client


def _bad_lines(streamed: StreamStatistics, skip_bad: bool) -> Callable[[Malformed, int], None]:
    """Return the handler of invalid lines. It gets the error and the number of instances up to the line."""

    def on_bad(error: Malformed, count: int) -> None:
        if not skip_bad and isinstance(error, WrongOption):  # so are others: to skip them would lose some labels most
            raise error
        if not skip_bad:
            raise Malformed(f"{error} (to continue after it, use --skip {count} or --skip-bad)")
        streamed.counts["bad"] += 1
        if streamed.counts["bad"] <= SHOWN_REFUSALS:
            error_console().print(f"skipped {error}", style="yellow", markup=False)

    return on_bad


def _why_nothing(verb: str, files: list[str], streamed: StreamStatistics) -> str:
    if streamed.counts["unlabelled"]:
        return "no instance has labels; name their column or field with --label"
    bad = f"; lines that are not instances: {n:,}" if (n := streamed.counts["bad"]) else ""
    return f"no instance to {verb} in {', '.join(files)}{bad}"


def _instances(
    files: list[str],
    options: list[ReadOptions],
    skip: int,
    limit: int | None,
    on_bad: Callable[[Malformed, int], None],
) -> Callable[[ProgressBar], Iterator[DatasetInstance]]:
    """Return a function that yields every instance and shows on a progress bar how much of all files is read."""
    from abound.datasets.files import read_file, size_of

    def read_all(bar: ProgressBar) -> Iterator[DatasetInstance]:
        sizes = [size_of(name) for name in files]
        before = 0
        bar.reset(None if None in sizes else sum(size or 0 for size in sizes))
        count = 0

        def count_bad(error: Malformed) -> None:
            nonlocal count
            count += 1
            if count > skip:
                on_bad(error, count)

        for name, size, how in zip(files, sizes, options, strict=True):
            for instance in read_file(name, partial(_show_position, bar, before), None, count_bad, how):
                count += 1
                if count <= skip:
                    continue
                if limit is not None and count - skip > limit:  # the last ones were bad
                    return
                yield instance
                if count - skip == limit:
                    return
            before += size or 0

    return read_all


class _ReadAhead:
    """Instances read by a background thread, so that a silent source does not delay the instances already read."""

    def __init__(self, instances: Iterator[DatasetInstance]) -> None:
        self._read: Queue[DatasetInstance | BaseException | None] = Queue(READ_AHEAD)
        Thread(target=self._fill, args=(instances,), name="abound-reading", daemon=True).start()

    def __iter__(self) -> Iterator[DatasetInstance | None]:
        """Yield the instances and raise their error; None after each second without one, to send the pending ones."""
        due = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                one = self._read.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                yield None
                due = time.monotonic() + FLUSH_SECONDS
                continue
            if one is None:
                return
            if isinstance(one, BaseException):
                raise one
            yield one

    def drain(self) -> Iterator[DatasetInstance]:
        with suppress(Empty):
            while True:
                one = self._read.get_nowait()
                if one is not None and not isinstance(one, BaseException):
                    yield one

    def _fill(self, instances: Iterator[DatasetInstance]) -> None:
        end: BaseException | None = None
        try:
            for instance in instances:
                self._read.put(instance)
        except BaseException as error:  # raised in the consuming thread
            end = error
        self._read.put(end)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show_position(bar: ProgressBar, before: int, position: int) -> None:
    bar.advance_to(before + position)


def _run(
    title: str,
    instances: Callable[[ProgressBar], Iterator[DatasetInstance]],
    line_of: Callable[[DatasetInstance, int], bytes | None],
    send: Callable[[Iterator[bytes | None]], Iterator[dict[str, Any]]],
    note: Callable[[dict[str, Any], DatasetInstance, StreamStatistics], None],
    streamed: StreamStatistics,
    hidden: bool = False,
) -> None:
    from abound.client import ClientError, Interrupted, Refused, refusal_of

    sent: deque[DatasetInstance] = deque()

    def settle(answer: dict[str, Any]) -> None:
        instance = sent.popleft()
        refusal = refusal_of(answer)
        if refusal is None:
            streamed.counts["answered"] += 1
            _show_warning(instance, answer, streamed)
        else:
            streamed.counts["refused"] += 1
            _show_refusal(instance, refusal, streamed)
            stopping.extend([refusal] if refusal.status in ENDING_STATUSES else [])
        note(answer, instance, streamed)

    stopping: list[AboundError] = []
    with progress_bar(title, hidden=hidden) as bar, _sigterm_as_interrupt():
        ahead = _ReadAhead(instances(bar))

        def lines() -> Iterator[bytes | None]:
            number = 0
            try:
                for instance in ahead:
                    if instance is None:
                        yield None
                        continue
                    number += 1
                    line = line_of(instance, number)
                    if line is None:
                        streamed.counts["unlabelled"] += 1
                        continue
                    sent.append(instance)
                    yield line
            except Malformed as error:  # the instances before it are still sent
                stopping.append(error)

        try:
            for count, answer in enumerate(send(lines()), start=1):
                settle(answer)
                if count % 100 == 0:
                    bar.set_text(_progress(streamed))
                if stopping and not sent:
                    break
        except KeyboardInterrupt:
            sent.extend(ahead.drain())
            raise StreamEnded(f"interrupted; {_counts(streamed)}; {_left(sent)}") from None
        except Interrupted as error:
            for answer in error.answers:
                settle(answer)
            raise StreamEnded(f"{error}; {_counts(streamed)}; {_left(sent)}") from error
        except ClientError as error:
            known = not isinstance(error, Refused) or error.status not in OUTCOME_UNKNOWN
            if known and not streamed.counts["answered"]:
                raise StreamEnded(f"{error}; nothing was processed") from error
            raise StreamEnded(f"{error}; {_counts(streamed)}; {_left(sent, known)}") from error
    if stopping:
        raise StreamEnded(f"{stopping[0]}; {_counts(streamed)}")


def _finish(summary: dict[str, Any], done: str, streamed: StreamStatistics, as_json: bool, out: TextIO) -> None:
    if as_json:
        print_json(summary) if out is sys.stdout else out.write(json.dumps(summary) + "\n")
    else:
        seconds, rate = summary["seconds"], summary["per_second"] or 0
        out.write(f"{_counts(streamed)} in {seconds:.1f} s ({rate:,.0f} a second)\n")
        whole, newest = streamed.accuracy.all(), streamed.accuracy.window()
        if whole["n"]:
            out.write(f"all        {format_score(whole)}\n")
        if newest["n"] != whole["n"]:
            out.write(f"last {newest['n']:<6}{format_score(newest)}\n")
    if streamed.counts["refused"]:
        raise typer.Exit(1)


def _with_fields(line: bytes, fields: dict[str, Any]) -> bytes:
    return line[:-1] + b"," + json.dumps(fields).encode()[1:] if fields else line


def _show_warning(instance: DatasetInstance, answer: dict[str, Any], streamed: StreamStatistics) -> None:
    if "warning" in answer and not streamed.is_warned:
        streamed.is_warned = True
        error_console().print(f"{instance.location}: warning: {answer['warning']}", style="yellow", markup=False)


def _show_refusal(instance: DatasetInstance, refusal: Refused, streamed: StreamStatistics) -> None:
    if streamed.counts["refused"] <= SHOWN_REFUSALS:
        is_column = streamed.vector is not None and refusal.problem.get("field") == "vector"
        where = f"{instance.location}: column {streamed.vector}" if is_column else instance.location
        error_console().print(f"{where}: {refusal}", style="yellow", markup=False)
    elif streamed.counts["refused"] == SHOWN_REFUSALS + 1:
        error_console().print("further refused lines are only counted", style="yellow")


def _progress(streamed: StreamStatistics) -> str:
    rate = streamed.counts["answered"] / max(time.perf_counter() - streamed.started, 1e-9)
    return f"{streamed.counts['answered']:,} ({rate:,.0f}/s)  {format_score(streamed.accuracy.all())}"


def _counts(streamed: StreamStatistics) -> str:
    counts = streamed.counts
    said = f"{counted(counts['answered'], 'instance')} done, {counts['refused']:,} refused"
    said += f", {counts['unlabelled']:,} without labels skipped" if counts["unlabelled"] else ""
    return said + (f", {counted(counts['bad'], 'bad line')} skipped" if counts["bad"] else "")


def _left(sent: deque[DatasetInstance], known: bool = False) -> str:
    """Say what became of the instances without an answer; ``known`` if they were not processed."""
    what = "nothing more was processed" if known else f"{len(sent):,} more may or may not have been processed"
    return f"{what}, from {sent[0].location} on" if sent else what
