"""Histories that were broken once: what was wrong, and the weather in which it comes about.

A seed alone does not keep a history: whatever changes in the service changes it. So each is kept as its faults, with
some seeds, and a sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.simulation.history import run


class Known(NamedTuple):
    """What once was broken; the faults by which it shows."""

    what: str
    faults: tuple[str, ...]
    seeds: range


KNOWN = [
    Known("a policy that changes with the primary: fsync was claimed by the one before", ("_fail_over",), range(8)),
    Known(
        "a promoted copy loses power with what was on its primary's disk only",
        ("_fail_over", "_lose_power"),
        range(70, 78),
    ),
    Known("a primary that is made a copy is read on over the connections that it keeps", ("_demote",), range(8)),
    Known(
        "what is pending in a store that was replaced holds the next adoption up", ("_demote", "_cut"), range(40, 48)
    ),
    Known(
        "entries are trimmed between a reading and the question how far the log is trimmed",
        ("_pause", "_slow"),
        range(8),
    ),
    Known("half of a catalog holds at the next return, and models are missed", ("_kill_store", "_cut_all"), range(8)),
    Known(
        "the clock is set back, and snapshots, leases and presence are of the future",
        ("_set_clock", "_kill"),
        range(8),
    ),
    Known("a replica is stopped for longer than a tail is there", ("_pause", "_fail_over", "_fuse"), range(8)),
]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.what.replace(" ", "_"))
def test_what_was_broken_once_holds(known: Known) -> None:
    broken = {seed: found for seed in known.seeds if (found := run(seed, faults=known.faults).broken)}
    assert broken == {}
