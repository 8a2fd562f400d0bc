"""The measures against a plain, slow implementation of the same definitions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abound_core.measures import PRECISION_AT, LabelSets, Propensity, Rankings, evaluate, rank_measures


def rankings(pairs: Sequence[tuple[Sequence[int], Sequence[float]]]) -> Rankings:
    starts = np.cumsum([0, *(len(ids) for ids, _ in pairs)])
    ids = np.array([one for ids, _ in pairs for one in ids], dtype=np.int64)
    return Rankings.of(starts, ids, np.array([one for _, scores in pairs for one in scores]))


def test_propensity_by_hand():
    # 20 training instances: C = (ln 20 - 1) 2.5^0.55 = 1.9957323 * 1.6552630 = 3.3034618
    # N = 1: 1/p = 1 + C 2.5^-0.55 = 1 + ln 20 - 1 = ln 20, by construction
    weights = Propensity().weights([1, 0, 10], 20)
    assert weights[0] == pytest.approx(math.log(20))
    # N = 0: 1 + C 1.5^-0.55 = 1 + 3.3034618 * 0.8001102 ; N = 10: 1 + C 11.5^-0.55 = 1 + 3.3034618 * 0.2609854
    assert weights[1:].tolist() == pytest.approx([3.6431335, 1.8621552], abs=1e-7)
    assert Propensity(a=0.6, b=2.6).weights([1], 1000)[0] == pytest.approx(math.log(1000))
    assert Propensity().weights([0, 1], 2).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="b > 0"):
        Propensity(b=0.0)


def test_rank_measures_are_those_of_the_ranks():
    mrr = (1 + 1 / 5 + 1 / 6) / 4
    assert rank_measures(np.array([1, 5, 6, 0])) == pytest.approx({"R@1": 0.25, "R@5": 0.5, "MRR": mrr, "HR": 1 / mrr})


def plain(
    ranked: list[tuple[list[int], list[float]]], true: list[list[int]], weights: list[float]
) -> dict[str, float | None]:
    """The definitions, one instance and one label at a time."""
    out: dict[str, float | None] = {}
    orders = [[label for _, label in sorted((-s, i) for i, s in zip(*pair, strict=True))] for pair in ranked]
    places = [
        min([order.index(label) + 1 for label in labels if label in order], default=math.inf)
        for order, labels in zip(orders, true, strict=True)
        if labels
    ]
    for k in (1, 5):
        out[f"R@{k}"] = sum(place <= k for place in places) / len(places) if places else 0.0
    mrr = sum(1 / place for place in places) / len(places) if places else 0.0
    found = {
        label: [label in order[:5] for order, labels in zip(orders, true, strict=True) if label in labels]
        for label in {label for labels in true for label in labels}
    }
    out["macro R@5"] = sum(sum(one) / len(one) for one in found.values()) / len(found) if found else 0.0
    out["MRR"], out["HR"] = mrr, (1 / mrr if mrr else None)
    for k in PRECISION_AT:
        p = ndcg = psp = psp_best = psn = psn_best = 0.0
        for order, labels in zip(orders, true, strict=True):
            if not labels:
                continue
            ideal = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(labels)) + 1))
            best = sorted((weights[label] for label in labels), reverse=True)[:k]
            for place, label in enumerate(order[:k], start=1):
                if label in labels:
                    p += 1 / k
                    ndcg += 1 / math.log2(place + 1) / ideal
                    psp += weights[label]
                    psn += weights[label] / math.log2(place + 1) / ideal
            psp_best += sum(best)
            psn_best += sum(w / math.log2(place + 1) for place, w in enumerate(best, start=1)) / ideal
        n = max(len(true), 1)
        out |= {f"P@{k}": p / n, f"nDCG@{k}": ndcg / n}
        out |= {f"PSP@{k}": psp / psp_best if psp_best else 0.0, f"PSnDCG@{k}": psn / psn_best if psn_best else 0.0}
    return out


@st.composite
def tasks(draw: st.DrawFn) -> tuple[list[tuple[list[int], list[float]]], list[list[int]], list[float]]:
    n_labels = draw(st.integers(1, 9))
    labels = st.lists(st.integers(0, n_labels - 1), unique=True)
    instances = draw(st.lists(st.tuples(labels, labels), max_size=6))
    scores = st.sampled_from([0.25, 0.5, 0.75, 1.0])
    ranked = [(ids, draw(st.lists(scores, min_size=len(ids), max_size=len(ids)))) for ids, _ in instances]
    weights = draw(st.lists(st.floats(1.0, 100.0), min_size=n_labels, max_size=n_labels))
    return ranked, [true for _, true in instances], weights


@given(tasks())
def test_equals_the_plain_implementation(task):
    ranked, true, weights = task
    measures = evaluate(rankings(ranked), LabelSets.of(true), np.array(weights))
    expected = plain(ranked, true, weights)
    assert measures.keys() == expected.keys()
    for name, value in expected.items():
        assert measures[name] == (None if value is None else pytest.approx(value, abs=1e-12)), name
    assert all(0.0 <= value <= 1.0 + 1e-12 for name, value in measures.items() if name != "HR" and value is not None)
    assert measures["HR"] is None or measures["HR"] >= 1.0
