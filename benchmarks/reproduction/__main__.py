"""Run the comparisons of the papers: ``python -m benchmarks.reproduction [--quick] [--only NAME] [--data DIR]``.

Runs every comparison for which the data sets are present, and writes reproduction.md. Results are stored beside the
report after each experiment, so an interrupted run resumes and no experiment runs twice. The report is generated from
the stored results alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from joblib import parallel_config
from threadpoolctl import threadpool_limits

from abound.cli.options import error_console, print_json
from abound.cli.progress import progress_bar
from abound_core.errors import AboundError
from benchmarks.reproduction.comparisons import PLOTS, TABLES, select_experiments
from benchmarks.reproduction.data_sets import SETS, LoadedDataSet, read
from benchmarks.reproduction.drawing import draw
from benchmarks.reproduction.experiment import Experiment
from benchmarks.reproduction.report import page
from benchmarks.reproduction.results import ResultsFile
from benchmarks.reproduction.run import run, warm

FOLDER, PAGE = "reproduction", "reproduction.md"

MEMORY = 20.0
"""Memory limit of an experiment, in GB."""


def main() -> None:
    """Run the program. Exit codes: 0 for success, 1 for failure, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__.split("\n\n")[1])
    parser.add_argument("--quick", action="store_true", help="only experiments of a few seconds each; minutes in all")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a table, a plot or an experiment; may be repeated"
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("ABOUND_DATA") or None, help="folder of the data sets"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/notes"), help="folder to write reproduction.md to")
    parser.add_argument("--again", action="store_true", help="also repeat experiments that have results")
    parser.add_argument(
        "--memory",
        type=float,
        default=MEMORY,
        metavar="GB",
        help="memory limit of an experiment (default: %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list the names of tables and plots, and run nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.list:
        _list(options.json)
        return
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data: no such folder: {options.data}")
    try:
        experiments = select_experiments(options.only, quick=options.quick)
    except KeyError as error:
        parser.error(f"--only: {error.args[0]} is unknown; see --list")
    try:
        _reproduce(experiments, options)
    except AboundError as error:
        print(f"abound: {error}", file=sys.stderr)
        sys.exit(1)


def _list(as_json: bool) -> None:
    titles = {one.name: one.title for one in TABLES} | {one.name: one.title for one in PLOTS}
    if as_json:
        print_json(titles)
        return
    for name, title in titles.items():
        print(f"{name:<20}{title}")


def _reproduce(experiments: list[Experiment], options: argparse.Namespace) -> None:
    kept = ResultsFile(options.out / FOLDER)
    room = int(options.memory * 1e9)
    try:
        _run([one for one in experiments if options.again or not kept.is_done(one, room)], kept, options.data, room)
    finally:
        _write_report(options.out, kept)
    if options.json:
        figures = {one.id: kept.figures_of(one) for one in experiments}
        print_json({"page": str(options.out / PAGE), "experiments": figures})


def _run(experiments: list[Experiment], kept: ResultsFile, data: Path | None, memory: int) -> None:
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
    folder = out / FOLDER
    try:
        draw(PLOTS, kept, folder)
    except AboundError as error:
        error_console().print(str(error), markup=False)
    drawn = [plot.name for plot in PLOTS if (folder / f"{plot.name}.svg").exists()]
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(page(TABLES, PLOTS, kept, FOLDER, drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
