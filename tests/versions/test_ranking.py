import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound.replica.rankers import BatchingPool
from abound.versions import ranking
from abound.versions.ranking import RankingRequest, rank_all
from abound.versions.versions import LoadedVersion
from abound_core.errors import Overloaded
from abound_core.model.label_changes import Renamed
from abound_core.types import Offset
from tests.randomness import examples
from tests.support.small_versions import FEATURES, fitted, ranked, vector

AT = Offset(5, 0, 0)
MADE = [fitted("one", 9), fitted("two", 4)]
LABELS = [*sorted({label for made in MADE for label in made.labels}), "never learned"]


def loaded(made: Any) -> LoadedVersion:
    card: Any = SimpleNamespace(id="0123456789abcdef")
    return LoadedVersion(card, made)


VERSIONS = [loaded(made) for made in MADE]


def plain(version: int, features: dict[str, Any], asked: RankingRequest) -> list[tuple[str, float]]:
    """What is to come, by asking for everything and leaving out what is not wanted."""
    found = ranked(MADE[version], features, len(MADE[version].labels))
    found = [one for one in found if asked.include is None or one[0] in asked.include]
    found = [one for one in found if one[0] not in (asked.exclude or ())][: asked.k]
    return [one for one in found if asked.threshold is None or one[1] >= asked.threshold]


chosen = st.none() | st.lists(st.sampled_from(LABELS), max_size=6)
questions = st.tuples(
    st.integers(0, 1), st.sampled_from(FEATURES), st.integers(1, 12), chosen, chosen, st.none() | st.floats(0, 1)
)


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(questions, max_size=8), st.booleans())
def test_many_questions_at_once_are_answered_as_each_alone(asked: list[Any], few_at_once: bool) -> None:
    given_, expected = [], []
    before = ranking.MOST_SCORES
    for version, features, k, include, exclude, threshold in asked:
        one = RankingRequest(VERSIONS[version], vector(features), k, include, exclude, threshold, AT, Renamed())
        given_.append(one)
        expected.append(plain(version, features, one))
    try:
        ranking.MOST_SCORES = 10 if few_at_once else before
        assert rank_all(given_) == expected
    finally:
        ranking.MOST_SCORES = before


def test_a_version_answers_by_present_names() -> None:
    renamed, features = Renamed(), FEATURES[3]
    renamed.update({"one 3": "three", "one 0": "three", "one 1": None, "one 2": "zwei"})
    ask = {"k": 9, "include": None, "exclude": None, "threshold": None, "offset": AT, "renamed": renamed}
    asked = [
        RankingRequest(VERSIONS[0], vector(features), **(ask | more)) for more in ({}, {"k": 2}, {"exclude": ["one 2"]})
    ]
    asked.append(RankingRequest(VERSIONS[0], vector(features), **(ask | {"include": ["one 0", "one 1"]})))
    expected: dict[str, float] = {}
    for label, score in ranked(MADE[0], features, 9):
        if (name := renamed.get(label, label)) is not None:
            expected.setdefault(name, score)
    every, few, less, only = rank_all(asked)
    assert (every, few) == (list(expected.items()), list(expected.items())[:2])
    assert [label for label, _ in less] == [label for label in expected if label != "zwei"]
    assert [label for label, _ in only] == ["three"]


class Gated:
    """Work that waits for a gate; a bad item fails."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.together: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.begun.set()
        self.gate.wait(60)
        self.together.append(list(items))
        return [100 // item for item in items]


async def test_what_waits_for_a_thread_is_bounded_and_done_together() -> None:
    work = Gated()
    pool = BatchingPool(work, 1, 2)
    first = asyncio.create_task(pool.run([1]))
    await asyncio.to_thread(work.begun.wait, 60)
    waiting = [asyncio.create_task(pool.run(items)) for items in ([2], [4, 5])]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await pool.run([10])
    assert refused.value.retry_after > 0
    patient = asyncio.create_task(pool.run([20], patient=True))
    await asyncio.sleep(0)
    work.gate.set()
    assert await asyncio.gather(first, *waiting, patient) == [[100], [50], [25, 20], [5]]
    assert work.together == [[1], [2, 4, 5, 20]]
    assert await pool.run([25]) == [4]
    pool.close()


async def test_none_fails_for_another_one() -> None:
    work = Gated()
    pool = BatchingPool(work, 1, 8)
    first = asyncio.create_task(pool.run([1]))
    await asyncio.to_thread(work.begun.wait, 60)
    good, bad, gone = (asyncio.create_task(pool.run(items)) for items in ([2], [0], [5]))
    await asyncio.sleep(0)
    gone.cancel()
    work.gate.set()
    results = await asyncio.gather(first, good, bad, gone, return_exceptions=True)
    assert results[:2] == [[100], [50]]
    assert isinstance(results[2], ZeroDivisionError)
    assert isinstance(results[3], asyncio.CancelledError)
    pool.close()
