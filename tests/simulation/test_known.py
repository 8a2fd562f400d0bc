"""Histories that were broken once: what was wrong, and the weather in which it comes about.

A seed alone does not keep a history: whatever changes in the service or here changes it. So each is kept as its faults,
with some seeds and a sentence.

Where ``wrong`` puts back what was wrong, it is tried that the histories tell of it (``first``: a seed that does). In
the others it was the simulation itself, its plain model or how it reads history; they are only gone through once more.
What was wrong in the service, and is not seen in a hundred histories when it is put back, has a test of its own there.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from abound_core.types import Offset
from tests.simulation.history import run
from tests.simulation.test_mutations import do_not_check_on_return

Patch = pytest.MonkeyPatch

SEARCHED = 200
"""So many histories from ``first`` on are looked through for one that tells."""


def apply_again_what_a_switch_has_read(patch: Patch) -> None:
    """What a reply has of a log is applied, though a switch has read that log to its end meanwhile."""
    patch.setattr("abound.replica.follower.Offset", SimpleNamespace(of_entry=lambda name: Offset(2**64, 0, 0)))


class Known(NamedTuple):
    """What once was broken; ``wrong`` puts it back."""

    what: str
    faults: tuple[str, ...] | None  # by which it shows; None: those that the seeds choose
    first: int  # seed
    wrong: Callable[[Patch], None] | None = None


KNOWN = [
    Known(
        "the plain model: a promoted copy loses power with what was on its primary's disk only",
        ("_fail_over", "_lose_power"),
        2200,
    ),
    Known(
        "a replica applied entries twice that came in one reply with a replacement of their model",
        None,
        0,
        apply_again_what_a_switch_has_read,
    ),
    Known(
        "the plain model: a copy that confirmed an event has it in memory, is promoted, and loses power",
        ("_demote", "_lose_power"),
        414,
    ),
    Known("the plain model: an activation of a model that a failover lost", ("_fail_over", "_pause"), 1253),
    Known("history was read by the name that the artifact store had before the store lost all", None, 2590),
    Known("of two copies the one without what the other had confirmed was promoted", ("_demote", "_cut"), 0),
    Known(
        "the last words of a process that was killed on a slow way, or what kills it, came while states were compared",
        ("_slow", "_fuse"),
        0,
    ),
    Known(
        "a replica was stopped for longer than a tail was there",
        ("_pause", "_fail_over", "_fuse"),
        0,
        do_not_check_on_return,
    ),
]

PUT_BACK = [known for known in KNOWN if known.wrong is not None]


def _name(known: Known) -> str:
    return known.what.replace(" ", "_")


@pytest.mark.parametrize("n_seeds", [2, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("known", KNOWN, ids=_name)
def test_what_was_broken_once_holds(known: Known, n_seeds: int) -> None:
    seeds = range(known.first, known.first + n_seeds)
    assert {seed: found for seed in seeds if (found := run(seed, faults=known.faults).broken)} == {}


@pytest.mark.long
@pytest.mark.parametrize("known", PUT_BACK, ids=_name)
def test_it_is_seen_when_it_is_put_back(known: Known, monkeypatch: Patch) -> None:
    assert known.wrong is not None
    known.wrong(monkeypatch)
    seeds = range(known.first, known.first + SEARCHED)
    assert any(run(seed, faults=known.faults).broken for seed in seeds)
