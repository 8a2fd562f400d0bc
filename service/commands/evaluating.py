"""``abound evaluate``: in process, without a service."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any

import typer

from service.commands.meter import meter
from service.commands.options import AsJson, Assignments, check_files, config_of, in_words, print_json

METHODS = ("ff",)


def evaluate(
    train: Annotated[list[str], typer.Option("--train", metavar="FILE", help="To learn. May be given several times.")],
    test: Annotated[list[str], typer.Option("--test", metavar="FILE", help="To classify. May be given several times.")],
    method: Annotated[str, typer.Option("--method", help="ff: the live index.")] = "ff",
    assignments: Assignments = None,
    passes: Annotated[int, typer.Option("--passes", min=1, help="How often the training data are gone through.")] = 1,
    shuffle: Annotated[int | None, typer.Option("--shuffle", metavar="SEED", help="Learn in a random order.")] = None,
    propensity_a: Annotated[float | None, typer.Option("--propensity-a", help="A of PSP, PSnDCG.  [0.55]")] = None,
    propensity_b: Annotated[float | None, typer.Option("--propensity-b", help="B of PSP, PSnDCG.  [1.5]")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit on one file and evaluate on another, in this process: measures, time, connections, work.

    Training instances without labels are not learned. R@k, MRR and HR (1/MRR) are over the test instances that have
    labels, the other measures over all of them.
    """
    if method not in METHODS:
        raise typer.BadParameter(f"there is no method {method}; there is: {', '.join(METHODS)}", param_hint="--method")
    config = config_of(assignments)
    check_files([*train, *test])

    from core.metrics import Propensity
    from service.evaluate import evaluate as evaluate_instances
    from service.files import read_file

    try:
        given = {"a": propensity_a, "b": propensity_b}
        propensity = Propensity(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--propensity-b") from error
    with meter("evaluate") as bar:
        done = 0

        def progress(n: int) -> None:
            nonlocal done
            done += n
            bar.say(f"{done:,} instances learned or ranked")

        bar.say("reading and vectorizing")
        result = evaluate_instances(
            _named(train, read_file),
            _named(test, read_file),
            config,
            passes=passes,
            shuffle=shuffle,
            propensity=propensity,
            progress=progress,
        )
    if as_json:
        print_json(result)
    else:
        _show(result)


def _named(names: list[str], read_file: Any) -> Any:
    return chain.from_iterable(read_file(name) for name in names)


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
    console.print(f"MRR {metrics['MRR']:.4f}   HR {in_words(metrics['HR'])}\n")
    instances, seconds = result["instances"], result["seconds"]
    console.print(f"train      {instances['train']:,} instances, {result['learned']:,} learned")
    console.print(f"test       {instances['test']:,} instances")
    console.print(f"index      {result['features']:,} features, {result['classes']:,} classes")
    console.print(f"           {result['connections']:,} connections, {result['bytes']:,} bytes")
    console.print(f"work       {result['work_per_feature']:.2f} connections an active feature")
    console.print(f"seconds    {', '.join(f'{name} {value:.2f}' for name, value in seconds.items())}")
