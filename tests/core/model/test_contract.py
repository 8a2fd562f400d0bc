"""What holds for a model of every configuration: slices, snapshots, digests, explanations, damaged arrays."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.array_spec import MOST_EVENTS, check_room
from abound_core.config import ModelConfig
from abound_core.errors import Corrupted
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import INTERCEPT, MEANING, RERANKED, LiveModel
from abound_core.model.reranker_kernels import MOST_COUNTED
from abound_core.types import Offset
from tests.core.model.forging import CONFIGS, forgery_of, instance, records
from tests.randomness import examples

ALL = CONFIGS | {
    "rows calibrated": {"update": "sls", "max_features": 40},
    "vectors": {"update": "sls", "rerank": False, "calibrate": False},
    "vectors many codes": {"update": "sls", "codes": 16384, "rerank": True},
    "vectors rows": {"update": "sls", "max_features": 40},
    "deciding": {"decide": {"agreement": 0.7, "audit": 0.5}, "max_features": 40},
    "rows deciding": {"update": "sls", "decide": {"agreement": 0.6, "audit": 0.3}},
}
every_configuration = pytest.mark.parametrize("name", ALL)


def applied(model: LiveModel, made: list[bytes], slices: int, first: int = 0) -> LiveModel:
    applying = model.begin(b"".join(made), len(made), [Unit(len(made))], Offset(0, 0, first))
    while not applying.done:
        applying.step(slices)
    return model


@every_configuration
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 10**6), slices=st.integers(1, 40), cut=st.integers(1, 119))
def test_slices_secrets_and_snapshots_change_nothing(name, seed, slices, cut):
    rng, config = random.Random(seed), ModelConfig.from_dict(ALL[name])
    made = records(rng, name, 120)
    whole = applied(LiveModel(config, (1, 2)), made, 1000)
    before = applied(LiveModel(config, (99, 7)), made[:cut], slices)
    loaded = LiveModel.from_arrays(before.meta(), before.to_arrays(), (5, 6))
    assert loaded.digest() == before.digest()
    applied(loaded, made[cut:], slices + 1, cut)
    assert loaded.digest() == whole.digest()
    assert loaded.stats() == whole.stats() | {"memory": loaded.stats()["memory"]}
    for _ in range(10):
        vector, _ = instance(rng, name)
        one, other = whole.rank(vector, 20), loaded.rank(vector, 20)
        assert [array.tolist() for array in one[:2]] == [array.tolist() for array in other[:2]]


@every_configuration
def test_contributions_sum_to_the_score(name):
    model, rng = LiveModel(ModelConfig.from_dict(ALL[name]), (1, 2)), random.Random(1)
    applied(model, records(rng, name, 300), 1000)
    seen = set()
    for _ in range(40):
        vector, _ = instance(rng, name)
        ranking = model.rank(vector, 5, exclude=["c1"])
        for score, because in zip(ranking.scores.tolist(), model.explain(vector, ranking), strict=True):
            parts = [part for _, part in because]
            assert sum(parts) == pytest.approx(score, abs=1e-9)
            assert parts == sorted(parts, reverse=True)
            seen |= {key for key, _ in because}
    assert not [key for key in seen if key.startswith("\0")]
    assert (INTERCEPT in seen) == model.index.in_rows
    assert (MEANING in seen or RERANKED in seen) == name.startswith("vectors")
    assert model.index.in_rows == ("rows" in name)


@every_configuration
def test_every_array_is_in_the_digest(name):
    """A change of a number is refused, or gives another digest; both happen. Only times of the trace are in none."""
    model = applied(LiveModel(ModelConfig.from_dict(ALL[name]), (1, 2)), records(random.Random(1), name, 200), 1000)
    digest, arrays, n_loaded = model.digest(), model.to_arrays(), 0
    if model.config.max_features is None:
        del arrays["tallies/hand"]  # it points at the next feature to evict
    del arrays["prequential/trace_times"], arrays["prequential/now"]
    for one, array in arrays.items():
        for at in {0, array.size // 2, array.size - 1} if array.size else ():
            changed = array.copy()
            changed.reshape(-1)[at] += 1
            try:
                loaded = LiveModel.from_arrays(model.meta(), model.to_arrays() | {one: changed}, (1, 2))
            except Corrupted:
                continue
            n_loaded += 1
            assert loaded.digest() != digest, one
    assert n_loaded > 5


@pytest.mark.parametrize("name", CONFIGS)
def test_an_array_that_is_missing_or_of_another_size_or_type_is_refused(name):
    arrays, meta = forgery_of(name).arrays, forgery_of(name).meta
    for one, array in arrays.items():
        wrong = [array.astype(np.float32 if array.dtype != np.float32 else np.float64)]
        wrong += [array[:-1], np.append(array, array[-1:], axis=0)] if array.size else []
        wrong += [array[None]] if one != "receipts/receipts" else []
        for changed in wrong:
            assert_refused(meta, arrays | {one: changed}, f"{one} {changed.dtype} {changed.shape}")
        if one not in ("tallies/feedback", "tree/parents"):  # a model without feedback or parents has none
            assert_refused(meta, {key: array for key, array in arrays.items() if key != one}, one)
    assert_refused(meta, arrays | {"calibration/other": np.zeros(1)}, "another")


def assert_refused(meta: dict[str, Any], arrays: dict[str, Any], what: str) -> None:
    try:
        LiveModel.from_arrays(meta, arrays, (1, 2))
    except Corrupted:
        return
    pytest.fail(what)


def times(factor: float) -> Any:
    return lambda array: (array * factor).astype(array.dtype)


def plus(*numbers: int) -> Any:
    return lambda array: array + np.array(numbers, array.dtype)


@pytest.mark.parametrize(
    ("name", "array", "change"),
    [
        ("fsu", "index/counts", np.nan),
        ("fsu", "index/counts", 1e300),
        ("fsu", "index/counts", lambda array: np.roll(array, 1)),
        ("fsu", "index/totals", times(0.0)),
        ("fsu", "index/totals", times(5e-324)),  # their weights may be infinite: a count of 1 by such a total
        ("fsu", "index/seen", 512),
        ("fsu", "index/lengths", 60_000),
        ("fsu", "index/class_ids", 2**32 - 1),
        ("fsu", "index/class_ids", lambda array: array[[0, 1, 2, 0, *range(4, len(array))]]),  # connected twice
        ("fsu", "tallies/hand", 3000),
        ("fsu", "tallies/credits", 255),
        ("fsu", "tallies/feedback", 2**63 - 1),
        ("fsu", "tallies/label_counts", 2**63 - 1),
        ("fsu", "tallies/dimension", 4000),
        ("fsu", "prequential/counts", 2**63 - 1),
        ("fsu", "prequential/reciprocal", np.nan),
        ("fsu", "prequential/stride", 20),
        ("fsu", "prequential/trace_counts", times(3)),
        ("fsu", "labels/bytes", 255),
        ("fsu", "details/lengths", 2**62),
        ("fsu", "details/class_ids", lambda array: array[::-1].copy()),
        ("fsu calibrated", "calibration/curvature", 1e308),
        ("fsu calibrated", "calibration/weights", 1e308),
        ("fsu calibrated", "calibration/bins", 1e18),
        ("sls", "index/weights", 1e38),
        ("sls", "index/weights", lambda array: np.nextafter(array, np.float32(9))),
        ("sls", "index/counted", 2**63 - 1),
        ("sls", "index/totals", 1e9),
        ("sls", "index/class_ids", times(0)),
        ("sls", "index/lengths", plus(1)),
        ("rows", "index/form", plus(1, 0, 0, 0)),
        ("rows", "index/form", plus(0, 0, -(10**9), 0)),
        ("rows", "index/intercepts", 1e308),
        ("rows", "index/row_weights", np.nan),
        ("rows", "index/row_steps", -1e9),
        ("rows", "index/class_times", -1),
        ("vectors reranked", "reranker/curvature", 1e308),
        ("vectors reranked", "reranker/weights", np.nan),
        ("vectors reranked", "reranker/guard", 1e308),
        ("vectors reranked", "reranker/counts", MOST_COUNTED),
        ("vectors reranked", "reranker/sums", 2**30),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_learning_cannot_reach_are_refused(name, array, change):
    """``change`` is a number in the last place, or what is done with all of them."""
    forgery = forgery_of(name)
    wrong = forgery.arrays[array].copy()
    if callable(change):
        wrong = change(wrong)
    else:
        wrong.reshape(-1)[-1] = change
    with pytest.raises(Corrupted), np.errstate(all="ignore"):
        LiveModel.from_arrays(forgery.meta, forgery.arrays | {array: wrong}, (1, 2))


@pytest.mark.parametrize(
    "meta", [{"serving": {"version": 3}}, {"serving": "live"}, {"config": {}}, {"config": {"calibrate": True}}], ids=str
)
def test_other_fields_than_those_of_the_arrays_are_refused(meta):
    forgery = forgery_of("rows")
    with pytest.raises(Corrupted):
        LiveModel.from_arrays(forgery.meta | meta, forgery.arrays, (1, 2))


def test_an_imported_model_has_room_for_further_events():
    counts = np.array([MOST_EVENTS // 2])
    check_room({"tallies/label_counts": counts})
    with pytest.raises(Corrupted, match="tallies/label_counts has a count above"):
        check_room({"tallies/label_counts": counts + 1})
