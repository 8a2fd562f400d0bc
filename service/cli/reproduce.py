"""``abound reproduce``: run the comparisons of the papers and write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abound.core.errors import AboundError
from abound.service.cli.options import AsJson, error_console, print_json
from abound.service.cli.progress import progress_bar

if TYPE_CHECKING:
    from abound.service.evaluation.reproduction.experiment import Experiment
    from abound.service.evaluation.reproduction.results import ResultsFile

FOLDER, PAGE = "reproduction", "reproduction.md"

MEMORY = 20.0
"""Memory limit of an experiment, in GB."""


def reproduce(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only experiments of a few seconds each; some minutes in all.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="A table, a plot or an experiment. May be repeated."),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", envvar="ABOUND_DATA", help="Folder of the data sets.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write reproduction.md to.")] = Path("docs"),
    again: Annotated[bool, typer.Option("--again", help="Also repeat experiments that have results.")] = False,
    memory: Annotated[float, typer.Option("--memory", metavar="GB", help="Memory limit of an experiment.")] = MEMORY,
    show: Annotated[bool, typer.Option("--list", help="List the names of tables and plots, and run nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run every comparison of the papers for which the data sets are present, and write reproduction.md.

    Results are stored beside the report after each experiment, so an interrupted run resumes and no experiment runs
    twice. The report is generated from the stored results alone.
    """
    from abound.service.evaluation.reproduction.comparisons import PLOTS, TABLES, select_experiments

    if show:
        titles = {one.name: one.title for one in TABLES} | {one.name: one.title for one in PLOTS}
        if as_json:
            print_json(titles)
            return
        for name, title in titles.items():
            typer.echo(f"{name:<20}{title}")
        return
    from abound.service.evaluation.reproduction.results import ResultsFile

    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"no such folder: {data}", param_hint="--data")
    try:
        experiments = select_experiments(only or [], quick=quick)
    except KeyError as error:
        raise typer.BadParameter(f"{error.args[0]} is unknown; see --list", param_hint="--only") from error
    kept = ResultsFile(out / FOLDER)
    room = int(memory * 1e9)
    try:
        _run([one for one in experiments if again or not kept.is_done(one, room)], kept, data, room)
    finally:
        _write_report(out, kept)
    if as_json:
        figures = {one.id: kept.figures_of(one) for one in experiments}
        print_json({"page": str(out / PAGE), "experiments": figures})


def _run(experiments: list[Experiment], kept: ResultsFile, data: Path | None, memory: int) -> None:
    from joblib import parallel_config
    from threadpoolctl import threadpool_limits

    from abound.service.evaluation.reproduction.data_sets import SETS, LoadedDataSet, read
    from abound.service.evaluation.reproduction.run import run, warm

    console = error_console()
    held: LoadedDataSet | None = None
    holds: tuple[str, bool] | None = None
    warmed: set[tuple[str, str]] = set()
    lacking: set[str] = set()
    with progress_bar("reproduce") as bar, threadpool_limits(1), parallel_config("threading", n_jobs=1):
        bar.reset(sum(one.seconds for one in experiments))
        done = 0.0
        for number, one in enumerate(experiments, start=1):
            bar.set_text(f"{number} of {len(experiments)}: {one.id}")
            source = SETS.get(one.data)
            wants = (one.data, bool(one.params.get("boolean")))
            if source is not None and source.folder is not None and (data is None or source.files(data) is None):
                if source.folder not in lacking:
                    lacking.add(source.folder)
                    console.print(
                        f"{source.folder}: not in the data folder; experiments that need it are skipped", markup=False
                    )
                continue
            if source is None:
                held = None
            elif holds != wants:
                held, holds = None, None  # free the old data set before loading the new one
                held, holds = read(source, data or Path(), boolean=wants[1]), wants
            if (one.data, one.method) not in warmed:
                warm(one, held)
                warmed.add((one.data, one.method))

            def told(
                stage: str, fraction: float, number: int = number, name: str = one.id, before: float = done
            ) -> None:
                bar.set_text(f"{number} of {len(experiments)}: {name}: {stage}, {fraction:.0%}")

            figures = run(one, held, memory, told)
            kept.store(figures)
            done += one.seconds
            bar.advance_to(done)
            console.print(f"{one.id}: {_summary(figures)}", markup=False)


def _summary(figures: dict[str, object]) -> str:
    if "refused" in figures:
        return f"refused: {figures['refused']}"
    measures = figures["measures"]
    assert isinstance(measures, dict)
    shown = [f"{name} {value:.2f}" for name in ("R@1", "P@1", "P@5") if (value := measures.get(name)) is not None]
    return ", ".join([*shown, f"{figures['seconds']} s"])


def _write_report(out: Path, kept: ResultsFile) -> None:
    from abound.service.evaluation.reproduction.comparisons import PLOTS, TABLES
    from abound.service.evaluation.reproduction.drawing import draw
    from abound.service.evaluation.reproduction.report import page

    folder = out / FOLDER
    try:
        draw(PLOTS, kept, folder)
    except AboundError as error:
        error_console().print(str(error), markup=False)
    drawn = [plot.name for plot in PLOTS if (folder / f"{plot.name}.svg").exists()]
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(page(TABLES, PLOTS, kept, FOLDER, drawn), encoding="utf-8")
