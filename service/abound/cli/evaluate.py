"""``abound evaluate`` and ``abound methods``: evaluation in this process, without a service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.options import (
    AsJson,
    Assignments,
    changes_of,
    config_of,
    format_value,
    print_json,
)
from abound.cli.progress import progress_bar
from abound.cli.read_options import DryRun, Misread, reads_files, show_files
from abound_core.errors import InvalidInstance
from abound_core.instances.read_options import ReadOptions

if TYPE_CHECKING:
    from abound_core.instances.data_formats import DatasetInstance
    from abound_core.measures import Propensity
    from abound_core.methods.registry import Method

PROBABILITIES = {
    "prequential": "probabilities while learning",
    "test": "probabilities on the test part",
    "score": "the score for one, 0 to 1",
}
"""Display names of the parts of ``calibration``."""

EXTRA_MEASURES = ("recall_of_neighbors", "nearest_labels_that_are_siblings")  # that some methods report, 0 to 1


@reads_files
def evaluate(
    train: Annotated[list[str], typer.Option("--train", metavar="FILE", help="Training data. May be repeated.")],
    test: Annotated[list[str], typer.Option("--test", metavar="FILE", help="Test data. May be repeated.")],
    options: ReadOptions,
    method: Annotated[
        str | None, typer.Option("--method", help="A method listed by `abound methods`.  [the live index]")
    ] = None,
    assignments: Assignments = None,
    passes: Annotated[int, typer.Option("--passes", min=1, help="Passes of the live index.")] = 1,
    shuffle: Annotated[
        int | None, typer.Option("--shuffle", metavar="SEED", help="Random order for the live index.")
    ] = None,
    propensity_a: Annotated[float | None, typer.Option("--propensity-a", help="A of PSP, PSnDCG.  [0.55]")] = None,
    propensity_b: Annotated[float | None, typer.Option("--propensity-b", help="B of PSP, PSnDCG.  [1.5]")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of a batch method.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Threads of a batch method.")] = 1,
    hide_labels: Annotated[
        float,
        typer.Option(
            "--hide-labels", min=0.0, max=1.0, help="Fraction of training labels to hide from a batch method."
        ),
    ] = 0.0,
    depth: Annotated[int, typer.Option("--depth", min=5, help="Number of labels that a batch method ranks.")] = 100,
    hierarchy: Annotated[
        Path | None,
        typer.Option("--hierarchy", metavar="FILE", help="Lines of a label or class, a tab and its parent class."),
    ] = None,
    decide: Annotated[
        float | None,
        typer.Option(
            "--decide",
            metavar="AGREEMENT",
            min=0.5,
            max=0.999,
            help="Show what the live index answers without a person.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Misread = False,
    as_json: AsJson = False,
) -> None:
    """Fit on training files and evaluate on test files, in this process: metrics, time, connections, work.

    Training instances without labels are not learned. R@k, MRR and HR (1/MRR) are averaged over the test instances with
    labels, macro R@5 over the labels of the test part, the other metrics over all test instances. ``--set`` takes the
    settings of a model for the live index. For a method it takes the parameters that a job takes, a model's
    ``analyzer``, ``negative`` and ``numbers``, ``idf`` (true or false; true by default for text) or ``params=auto``.
    An encoder of the analyzer has no effect on a method, which learns no vectors.
    """
    read = show_files([*train, *test], options, dry_run, yes, as_json)
    train_rows, test_rows = _Files(train, read[: len(train)]), _Files(test, read[len(train) :])
    propensity = _propensity(propensity_a, propensity_b)
    if method is None:
        if hide_labels:
            raise typer.BadParameter("labels can be hidden from a method only", param_hint="--hide-labels")
        if decide is not None:  # every label of the training files is known: all of them count
            assignments = [*(assignments or []), f"decide.agreement={decide}", "decide.audit=1"]
        result = _evaluate_live(train_rows, test_rows, assignments, passes, shuffle, propensity)
    else:
        if passes != 1 or shuffle is not None or decide is not None:
            raise typer.BadParameter("--passes, --shuffle and --decide are for the live index", param_hint="--passes")
        others: dict[str, Any] = {"seed": seed, "jobs": jobs, "hidden": hide_labels, "depth": depth}
        others["hierarchy"] = () if hierarchy is None else _read_hierarchy(hierarchy)
        result = _evaluate_batch(train_rows, test_rows, method, assignments, others, propensity)
    if as_json:
        print_json(result)
    else:
        _show(result)


def methods(as_json: AsJson = False) -> None:
    """List the methods: parameters with defaults, cost in terms of n, d and L, and recommended use."""
    from abound_core.methods.registry import METHODS

    described = {name: _describe(method) for name, method in METHODS.items()}
    if as_json:
        print_json(described)
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print("n instances, d features, L labels, l active features per instance, nnz nonzeros of all instances\n")
    for name, method in described.items():
        console.print(f"[bold]{name}[/bold]", end="  ")
        console.print(method["use"], markup=False)
        console.print(f"  {method['cost']}", markup=False)
        given = ", ".join(f"{field}={format_value(value)}" for field, value in method["params"].items())
        console.print(f"  {given or 'no parameters'}", markup=False)
        console.print("  params=auto searches for them\n" if method["search"] else "")


def _describe(method: Method) -> dict[str, Any]:
    defaults = method.params()
    return {
        "params": {field.name: getattr(defaults, field.name) for field in fields(method.params)},
        "search": method.search is not None,
        "cost": method.cost,
        "use": method.use,
    }


def _propensity(a: float | None, b: float | None) -> Propensity:
    from abound_core.measures import Propensity

    try:
        given = {"a": a, "b": b}
        return Propensity(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--propensity-b") from error


def _read_hierarchy(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the lines of a hierarchy file as (child, parent) pairs."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(str(error), param_hint="--hierarchy") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        child, tab, parent = line.partition("\t")
        if line and not (tab and child and parent):
            raise typer.BadParameter(f"line {number} is not two names separated by a tab", param_hint="--hierarchy")
        if line:
            pairs.append((child, parent))
    return tuple(pairs)


def _evaluate_batch(
    train: _Files,
    test: _Files,
    method: str,
    assignments: list[str] | None,
    others: dict[str, Any],
    propensity: Propensity,
) -> dict[str, Any]:
    from abound.evaluation.batch import BatchEvaluation, evaluate_method

    try:
        trial = BatchEvaluation.from_fields(method, changes_of(assignments), **others)
    except InvalidInstance as error:
        raise typer.BadParameter(str(error), param_hint="--method" if error.field == "method" else "--set") from error
    with progress_bar("evaluate") as bar:
        bar.set_text("reading and vectorizing")

        def progress(stage: str, fraction: float) -> None:
            bar.set_text(f"{stage}, {fraction:.0%}")

        return evaluate_method(train, test, trial, propensity=propensity, progress=progress)


def _evaluate_live(
    train: _Files,
    test: _Files,
    assignments: list[str] | None,
    passes: int,
    shuffle: int | None,
    propensity: Propensity,
) -> dict[str, Any]:
    from abound.evaluation.live import evaluate as evaluate_instances
    from abound.processes.encoder_files import use_encoders
    from abound.settings import Settings

    use_encoders(Settings.load().encoders_dir)
    config = config_of(assignments or [])
    with progress_bar("evaluate") as bar:
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done += n
            bar.set_text(f"{done:,} instances learned or ranked")

        bar.set_text("reading and vectorizing")
        result = evaluate_instances(
            train,
            test,
            config,
            passes=passes,
            shuffle=shuffle,
            propensity=propensity,
            progress=progress,
        )
    return result | {"params": {"passes": passes, "margin": config.margin}}


@dataclass
class _Files:
    """The instances of some files, read from the start by each iteration."""

    names: list[str]
    options: list[ReadOptions]

    def __iter__(self) -> Iterator[DatasetInstance]:
        from abound.datasets.files import read_file

        files = zip(self.names, self.options, strict=True)
        return chain.from_iterable(read_file(name, options=options) for name, options in files)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("", *(f"@{k}" for k in (1, 3, 5)), box=None, padding=(0, 2, 0, 0))
    metrics = result["metrics"]
    for name in ("R", "P", "nDCG", "PSP", "PSnDCG"):
        figures = (metrics.get(f"{name}@{k}") for k in (1, 3, 5))
        table.add_row(name, *("" if figure is None else f"{figure:.4f}" for figure in figures))
    console.print(table)
    line = f"MRR {metrics['MRR']:.4f}   HR {format_value(metrics['HR'])}   macro R@5 {metrics['macro R@5']:.4f}"
    console.print(f"{line}\n")
    for name, values in result.get("calibration", {}).items():
        said = ", ".join(f"{key} {format_value(values[key])}" for key in ("error", "brier", "F1") if key in values)
        console.print(f"{PROBABILITIES[name]:<28} {said}", markup=False)
    if "decisions" in result:
        table = Table(*result["decisions"][0], box=None, padding=(0, 2, 0, 0))
        for row in result["decisions"]:
            table.add_row(*map(format_value, row.values()))
        console.print(table)
    instances, seconds = result["instances"], result["seconds"]
    console.print(f"train      {instances['train']:,} instances, {result['learned']:,} learned")
    console.print(f"test       {instances['test']:,} instances")
    console.print(f"model      {result['features']:,} features, {result['classes']:,} classes")
    console.print(f"           {result['connections']:,} connections, {result['bytes']:,} bytes")
    if result["work_per_feature"] is not None:
        console.print(f"work       {result['work_per_feature']:.2f} connections per active feature")
    for name, value in result.get("params", {}).items():
        console.print(f"{name:<10} {format_value(value)}", markup=False)
    for name in EXTRA_MEASURES:
        if name in result:
            console.print(f"{name.replace('_', ' ')}  {result[name]:.4f}", markup=False)
    console.print(f"seconds    {', '.join(f'{name} {value:.2f}' for name, value in seconds.items())}")
