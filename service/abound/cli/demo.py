"""``abound demo``: learn Jane Austen's novels word by word through a running service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.accuracy import RunningAccuracy, format_score
from abound.cli.options import DEFAULT_URL, AsJson, Key, Url, error_console, print_json
from abound.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from abound.client import Client

MODEL = "austen"

CONTEXTS = (
    ("she had never been so", "in her life"),
    ("as soon as", "were gone"),
    ("he was a very agreeable young", "and every body liked him"),
    ("I am very much obliged", "you for your kindness"),
    ("it was impossible for her to", "that he had been"),
)
"""Gaps that the trained model fills in: the text before and after each."""

BAR = 24


def demo(
    url: Url = DEFAULT_URL,
    key: Key = None,
    instances: Annotated[int, typer.Option("--instances", "-n", min=1, help="Number of words.")] = 100_000,
    everything: Annotated[bool, typer.Option("--all", help="Use all 724,858 words.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stream Jane Austen's novels through a service: predict each word from its neighbours, then learn it.

    The demo creates the model `austen`, and replaces it if it exists. It touches no other model. If no service answers
    at the URL, the demo starts one with a temporary data directory, and stops it afterwards.
    """
    from abound.client import Interrupted, refusal_of
    from abound.datasets.austen import stream

    with _service(url, key) as (client, started):
        _recreate_model(client)
        wanted = None if everything else instances
        tally = RunningAccuracy()
        begun = time.perf_counter()
        with progress_bar("words") as bar:
            bar.reset(wanted or 724_858)
            lines = (instance.to_json() for instance in islice(stream(), wanted))
            try:
                for count, answer in enumerate(client.learn_stream(MODEL, lines), start=1):
                    refusal = refusal_of(answer)
                    if refusal is not None:
                        raise refusal
                    tally.add(answer["rank"])
                    if count % 500 == 0:
                        rate = count / (time.perf_counter() - begun)
                        bar.advance_to(count)
                        bar.set_text(
                            f"{count:,} ({rate:,.0f}/s)  all: {format_score(tally.all())}  "
                            f"newest: {format_score(tally.window())}"
                        )
            except Interrupted as error:
                raise type(error)(f"{error}, after {tally.all()['n']:,} words", error.answers, error.sent) from error
        seconds = time.perf_counter() - begun
        filled = [_fill_gap(client, before, after) for before, after in CONTEXTS]
        stats = client.stats(MODEL)
    result = {
        "url": client.url,
        "started": started,
        "model": MODEL,
        "instances": tally.all()["n"],
        "seconds": round(seconds, 3),
        "per_second": round(float(tally.all()["n"] or 0) / seconds, 1),
        "accuracy": {"all": tally.all(), "window": tally.window()},
        "stats": stats,
        "contexts": filled,
    }
    if as_json:
        print_json(result)
    else:
        _show(result)


@contextmanager
def _service(url: str, key: str | None) -> Iterator[tuple[Client, bool]]:
    """Provide a client, and True if a private service was started for the demo."""
    from abound.client import Client, Unreachable
    from abound.client.local_service import own_service

    with ExitStack() as stack:
        client = stack.enter_context(Client(url, key=key))
        try:
            client.ready()
        except Unreachable:
            console = error_console()
            console.print(f"no service answers at {url}; starting one for the demo", style="dim")
            own = stack.enter_context(own_service(lambda sentence: console.print(sentence, style="dim", markup=False)))
            yield stack.enter_context(Client(own)), True
            return
        yield client, False


def _recreate_model(client: Client) -> None:
    from abound.client import Refused

    try:
        client.delete(MODEL)
    except Refused as error:
        if error.status != 404:
            raise
    client.configure(MODEL, {})


def _fill_gap(client: Client, before: str, after: str) -> dict[str, Any]:
    import msgspec

    from abound.datasets.austen import context

    features = msgspec.Raw(context(before, after).features or b"{}")
    answer = client.classify(MODEL, {"features": features, "k": 5, "explain": True})
    return {"before": before, "after": after, "labels": answer["labels"]}


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    stats = result["stats"]
    console.print(
        f"\n[bold]{result['instances']:,} words[/], each predicted from its neighbours and then learned, "
        f"in {result['seconds']:.1f} s: {result['per_second']:,.0f} per second"
    )
    console.print(f"  over all             {format_score(result['accuracy']['all'])}")
    console.print(
        f"  over the last {result['accuracy']['window']['n']:<7,}{format_score(result['accuracy']['window'])}"
    )
    console.print(
        f"  the index            {stats['features']:,} features, {stats['classes']:,} classes, "
        f"{stats['connections']:,} connections"
    )
    for filled in result["contexts"]:
        _show_gap(console, filled)


def _show_gap(console: Console, filled: dict[str, Any]) -> None:
    console.print(f"\n[dim]{filled['before']}[/] [bold]____[/] [dim]{filled['after']}[/]")
    if not filled["labels"]:
        console.print("  (nothing is known about these words yet)")
        return
    best = filled["labels"][0]
    longest = max(label["score"] for label in filled["labels"])
    for label in filled["labels"]:
        console.print(f"  {label['label']:<14} {label['score']:.3f} [green]{_bar(label['score'], longest)}[/]")
    console.print(f"  because, for [bold]{best['label']}[/]:")
    for because in best["because"][:4]:
        bar = _bar(because["contribution"], best["score"])
        console.print(f"    {because['feature']:<26} {because['contribution']:.3f} [cyan]{bar}[/]", markup=True)


def _bar(value: float, whole: float) -> str:
    return "█" * max(1, round(BAR * value / whole)) if value > 0 else ""
