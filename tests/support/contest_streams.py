"""What tests of contests share: a stream on which a version is right and the index is not, and one the other way."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np

from abound.log.append_group import LearnDraft
from abound.log.catalog import DEFAULT_MODEL
from abound.replica.replica import Replica
from abound.store.lease import acquire
from abound.versions.promotion.contest import ContestFollower
from abound.versions.promotion.params import ChallengerParams
from abound.versions.promotion.standings import PURPOSE, Standings
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from abound_core.methods import fitted as fitting
from abound_core.methods import registry
from abound_core.methods.fitted import FittedMethod
from abound_core.methods.training.gather import MatrixBuilder
from abound_core.methods.training.progress import no_progress
from abound_core.promotion_rule import GateParams
from tests.support.lab import Lab
from tests.support.small_versions import vector

KNOWN = 3000
LABELS = 7
GATE = GateParams(alpha=0.05, min_events=40)
PARAMS = ChallengerParams(keep_seconds=60.0)  # each call follows the log to its end

Pair = tuple[str, str]
"""Features, and a label."""


def familiar(n: int, first: int = 0) -> list[Pair]:
    """Features that come once each, so that only a version which knows them all beforehand has their labels."""
    return [(f"f{i}", f"l{i % LABELS}") for i in range(first, first + n)]


def changed(n: int, first: int = 0) -> list[Pair]:
    """A few features again and again, with other labels than before: the index learns them, a version does not."""
    return [(f"f{i % LABELS}", f"l{(i + 1) % LABELS}") for i in range(first, first + n)]


def wise() -> FittedMethod:
    """A version that knows all features as they are at first."""
    gathering = MatrixBuilder((1, 2))
    for feature, label in familiar(KNOWN):
        gathering.add(vector({feature: 1}), [label])
    return fitting.fit(
        "ind", gathering.matrices(), registry.params_of("ind", {}), np.random.default_rng(5), no_progress
    )


def draft(pair: Pair) -> LearnDraft:
    features, label = pair
    return LearnDraft(vector(dict.fromkeys(features.split(), 1)) + pack_labels([label], Limits()), 1)


async def teach(replica: Replica, pairs: Iterable[Pair]) -> None:
    """Learn instances, 20 at a time."""
    drafts = [draft(pair) for pair in pairs]
    for first in range(0, len(drafts), 20):
        await replica.learn(DEFAULT_MODEL, drafts[first : first + 20])


@contextlib.asynccontextmanager
async def contest(lab: Lab, params: ChallengerParams = PARAMS, **fields: Any) -> AsyncIterator[ContestFollower]:
    """A contest that goes on when it is told to, with the lease."""
    living = await lab.living()
    async with acquire(lab.store, living.keys, purpose=PURPOSE) as lease:
        follower = ContestFollower(
            lab.store, lab.artifacts, living, lease, params, **{"gate": GATE, "prepare_seconds": 10.0} | fields
        )
        await follower.open()
        yield follower


def n_scored(standing: Standings | None, name: str = "live") -> int:
    """Instances that a version was asked about."""
    if standing is None or name not in standing.contest.scores:
        return 0
    return standing.contest.scores[name].all.n
