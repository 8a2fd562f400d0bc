"""The prequential score against a plain count of the same ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abound_core.config import ModelConfig
from abound_core.instances.record import pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model import prequential
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.model.prequential import Prequential
from abound_core.model.prequential_kernels import count_ranks
from abound_core.types import Offset
from tests.randomness import examples

events = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=4, unique_by=lambda e: e[0])
)


def plain(ranks: list[int]) -> dict[str, float | None]:
    if not ranks:
        return {"n": 0, "R@1": None, "R@5": None, "MRR": None}
    n = len(ranks)
    return {
        "n": n,
        "R@1": sum(rank == 1 for rank in ranks) / n,
        "R@5": sum(1 <= rank <= 5 for rank in ranks) / n,
        "MRR": sum(1 / rank for rank in ranks if rank) / n,
    }


@settings(max_examples=examples(100), deadline=None)
@given(events, st.sampled_from([0, 7, 40, 200]))
def test_counts_like_plain_python(stream, seen_before):
    score, counts = Prequential(), np.full(6, seen_before, np.int64)
    best: list[int] = []
    groups: dict[str, list[int]] = {"tail": [], "torso": [], "head": []}
    for event in stream:
        class_ids = np.array([class_id for class_id, _ in event], np.int32)
        ranks = np.array([rank for _, rank in event], np.int32)
        for class_id, rank in event:
            seen = counts[class_id]
            groups["tail" if seen < 10 else "torso" if seen < 100 else "head"].append(rank)
        found = [rank for _, rank in event if rank]
        best.append(min(found, default=0))
        assert count_ranks(score.arrays, counts, class_ids, ranks, True, -1) == best[-1]
        counts[class_ids] += 1
    for part in score.scores().values():
        assert {key: part[key] for key in plain([])} == pytest.approx(plain(best))
        for name, ranks_of in groups.items():
            assert part["groups"][name] == pytest.approx(plain(ranks_of))
    assert score.n_learned == score.n_updated == len(stream)


def test_a_collapse_shows_in_the_newest_500_first():
    score, counts, one = Prequential(), np.full(1, 200, np.int64), np.zeros(1, np.int32)
    ranks = [1] * (prequential.WINDOW + 200) + [2, 3, 0, 9, 1] * 100
    for rank in ranks:
        count_ranks(score.arrays, counts, one, np.array([rank], np.int32), False, -1)
    loaded = Prequential.from_arrays(score.to_arrays())
    found = loaded.scores()
    assert (loaded.digest_bytes(), score.n_updated) == (score.digest_bytes(), 0)
    for part, n in (("all", len(ranks)), ("window", 10_000), ("recent", 500)):
        expected = pytest.approx(plain(ranks[-n:]))
        assert {key: found[part][key] for key in plain([])} == expected
        assert found[part]["groups"]["head"] == expected
        assert found[part]["groups"]["tail"] == plain([])
    assert found["recent"]["R@1"] < 0.5 < 0.9 < found["window"]["R@1"]


def test_the_trace_has_the_score_of_each_stretch_however_long_the_stream():
    score, counts, one = Prequential(), np.zeros(1, np.int64), np.zeros(1, np.int32)
    random_ = np.random.default_rng(3)
    ranks = random_.integers(0, 8, 6 * prequential.TRACE_POINTS * prequential.FIRST_STRIDE).tolist()
    for n, rank in enumerate(ranks, start=1):
        seen = 50 if n <= 3000 else 500
        counts[0], score.arrays.now[0] = seen, 1000 * n
        count_ranks(score.arrays, counts, one, np.array([rank], np.int32), False, -1)
        if n % 511 and n % 2560 and n != len(ranks):
            continue
        trace = score.trace()
        stride = trace["stride"]
        assert len(trace["learned"]) == n // stride <= prequential.TRACE_POINTS
        assert n < prequential.TRACE_POINTS // 2 * 10 or len(trace["learned"]) >= prequential.TRACE_POINTS // 2
        assert trace["times"] == [1000 * end for end in trace["learned"]]
        for i, end in enumerate(trace["learned"]):
            assert end == (i + 1) * stride
            stretch = plain(ranks[end - stride : end])
            assert {name: trace[name][i] for name in ("R@1", "R@5", "MRR")} == {
                name: pytest.approx(stretch[name], abs=1e-4) for name in ("R@1", "R@5", "MRR")
            }
            torso = plain(ranks[end - stride : min(end, 3000)])
            assert trace["groups"]["torso"]["MRR"][i] == pytest.approx(torso["MRR"], abs=1e-4)
            assert trace["groups"]["tail"]["MRR"][i] is None
            assert trace["groups"]["torso"]["n"][i] == len(ranks[end - stride : min(end, 3000)])
            assert trace["groups"]["head"]["n"][i] == stride - trace["groups"]["torso"]["n"][i]
            assert trace["groups"]["tail"]["n"][i] == 0
        assert Prequential.from_arrays(score.to_arrays()).trace() == trace


def test_a_point_has_the_time_of_its_entry_and_the_digest_has_not():
    records = 20 * (pack_vector([b"wheat"], np.ones(1, np.float32)) + pack_labels(["grain"], Limits()))
    digests = set()
    for time, told in ((0, None), (1_700_000_000_000, 1_700_000_000_000), (2**62, prequential.MOST_TIME)):
        live = LiveModel(ModelConfig(), (1, 2))
        live.begin(records, 20, [Unit(20)], Offset(time, 0, 0)).finish()
        assert LiveModel.from_arrays(live.meta(), live.to_arrays(), (1, 2)).stats()["trace"]["times"] == [told, told]
        digests.add(live.prequential.digest_bytes())
    assert len(digests) == 1
