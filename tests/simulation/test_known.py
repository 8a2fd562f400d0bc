"""Histories that were broken once: what was wrong, and the weather in which it comes about.

A seed alone does not keep a history: whatever changes in the service or here changes it. So each is kept as its faults,
with some seeds and a sentence.

Where ``wrong`` puts back what was wrong, it is tried that the histories tell of it (``first``: a seed that does). The
others do not prove that much: what was wrong was seen in their weather once, in histories that went another way than
those of today. With it put back, 100 to 150 histories of that weather told nothing; here it is only gone through once
more. Where it was the service that was wrong, ``told_by`` names the tests of the service that do tell. Elsewhere it was
the simulation itself: its plain model, or how it reads history.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from abound.log import stream
from abound_core.types import Offset
from tests.simulation.history import run
from tests.simulation.server import Store

Patch = pytest.MonkeyPatch

N_SEEDS = 8
SEARCHED = 200
"""So many histories from ``first`` on are looked through for one that tells."""


def take_a_copy_for_its_primary(patch: Patch) -> None:
    """What a copy loses after it was promoted is not known to have been on the disk of its primary only."""
    lose = Store._lose

    def wrong(self: Store, kept: int, reason: str) -> None:
        self._inherited = 0
        lose(self, kept, reason)

    patch.setattr(Store, "_lose", wrong)


def apply_again_what_a_switch_has_read(patch: Patch) -> None:
    """What a reply has of a log is applied, though a switch has read that log to its end meanwhile."""
    patch.setattr("abound.replica.follower.Offset", SimpleNamespace(of_entry=lambda name: Offset(2**64, 0, 0)))


def go_on_without_looking(patch: Patch) -> None:
    """Whoever reads on does not look whether the entry applied last is still there."""

    async def wrong(*args: Any) -> bool:
        return True

    patch.setattr(stream, "holds_over", wrong)


class Known(NamedTuple):
    """What once was broken.

    Attributes
    ----------
    faults : tuple of str, or None
        By which it shows; None: those that the seeds choose.
    first : int
        The first seed.
    wrong : callable or None
        Puts it back.
    told_by : tuple of str
        Tests of the service, as ``file::test``.
    """

    what: str
    faults: tuple[str, ...] | None
    first: int
    wrong: Callable[[Patch], None] | None = None
    told_by: tuple[str, ...] = ()


KNOWN = [
    Known(
        "the plain model: a promoted copy loses power with what was on its primary's disk only",
        ("_fail_over", "_lose_power"),
        2200,
        take_a_copy_for_its_primary,
    ),
    Known(
        "a replica applied entries twice that came in one reply with a replacement of their model",
        None,
        0,
        apply_again_what_a_switch_has_read,
    ),
    Known(
        "a restore to before an activation took that back, and the store said it had not",
        None,
        204,
        told_by=("tests/replace/test_replace.py::test_a_restore_to_before_an_activation_keeps_what_is_active",),
    ),
    Known(
        "a replay that began while the first entries were archived found no beginning",
        None,
        541,
        told_by=("tests/history/test_archive.py::test_a_replay_that_begins_while_the_first_entries_are_archived",),
    ),
    Known(
        "the plain model: a copy that confirmed an event has it in memory, is promoted, and loses power",
        ("_demote", "_lose_power"),
        414,
    ),
    Known("the plain model: an activation of a model that a failover lost", ("_fail_over", "_pause"), 1253),
    Known("history was read by the name that the artifact store had before the store lost all", None, 2590),
    Known(
        "a policy that changes with the primary: fsync was claimed by the one before",
        ("_fail_over",),
        0,
        told_by=("tests/log/test_append.py::test_fsync_is_not_claimed_after_the_policy_was_changed",),
    ),
    Known(
        "a primary that is made a copy was read on over the connections that it keeps",
        ("_demote",),
        0,
        told_by=("tests/replica/test_store_outages.py::test_nothing_is_read_from_a_server_that_was_made_a_copy",),
    ),
    Known(
        "entries were trimmed between a reading and the question how far the log is trimmed",
        ("_pause", "_slow"),
        0,
        told_by=("tests/log/test_stream.py::test_nothing_of_another_comes_between_commands_in_one_piece",),
    ),
    Known(
        "half of a catalog held at the next return, and models were missed",
        ("_kill_store", "_cut_all"),
        0,
        told_by=("tests/log/test_catalog.py::test_half_of_a_catalog_counts_for_nothing",),
    ),
    Known(
        "the clock was set back, and snapshots and presence were of the future",
        ("_set_clock", "_kill"),
        0,
        told_by=(
            "tests/history/test_damage.py::test_a_snapshot_of_the_future_does_not_put_off_the_next_one",
            "tests/store/test_expiring.py::test_a_record_made_before_the_clock_was_set_back_lasts_no_longer_than_a_new_one",
        ),
    ),
    Known(
        "of two copies the one without what the other had confirmed was promoted",
        ("_demote", "_cut"),
        0,
    ),
    Known(
        "the last words of a process that was killed on a slow way, or what kills it, came while states were compared",
        ("_slow", "_fuse"),
        0,
    ),
    Known(
        "a replica was stopped for longer than a tail was there",
        ("_pause", "_fail_over", "_fuse"),
        0,
        go_on_without_looking,
    ),
]

PUT_BACK = [known for known in KNOWN if known.wrong is not None]


def _name(known: Known) -> str:
    return known.what.replace(" ", "_")


@pytest.mark.parametrize("known", KNOWN, ids=_name)
def test_what_was_broken_once_holds(known: Known) -> None:
    seeds = range(known.first, known.first + N_SEEDS)
    assert {seed: found for seed in seeds if (found := run(seed, faults=known.faults).broken)} == {}


@pytest.mark.long
@pytest.mark.parametrize("known", PUT_BACK, ids=_name)
def test_it_is_seen_when_it_is_put_back(known: Known, monkeypatch: Patch) -> None:
    assert known.wrong is not None
    known.wrong(monkeypatch)
    seeds = range(known.first, known.first + SEARCHED)
    assert any(run(seed, faults=known.faults).broken for seed in seeds)


@pytest.mark.parametrize("test", [test for known in KNOWN for test in known.told_by])
def test_what_tells_of_it_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in Path(__file__).parents[2].joinpath(file).read_text()
