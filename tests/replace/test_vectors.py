"""Models that learn from vectors: replicas agree after a restart, a forget and a refit."""

from typing import Any

import numpy as np
import pytest

from abound.jobs.replace import forget, refit
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ConfigureEvent, LearnEvent
from abound.replace.forget import ForgetParams
from abound.replace.refit import RefitParams
from abound_core.config import ModelConfig
from abound_core.instances.codes_kernels import PREFIX
from abound_core.instances.dense_vector import quantize
from abound_core.instances.record import pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from tests.support.lab import Lab, apply, digest_at, digest_of


def vectors(n: int, seed: int, d: int, source: str | None = None) -> list[LearnEvent]:
    """Events of an instance each, with a vector, or with a text as well."""
    rng = np.random.default_rng(seed)
    vectorizer = Vectorizer(ModelConfig(), Limits())
    events = []
    for i in range(n):
        numbers = rng.normal(0, 0.3, d)
        numbers[i % 3] += 1
        vector = vectorizer.vectorize(None, f"word{i % 7}" if i % 2 else None, quantize(numbers))
        events.append(LearnEvent(vector + pack_labels([f"class {i % 3}"], Limits()), 1, [Unit(1, source=source)]))
    return events


@pytest.mark.parametrize("changes", [{"rerank": False}, {}], ids=["index", "re-ranked"])
async def test_replicas_agree_after_a_restart_a_forget_and_a_refit(lab: Lab, changes: dict[str, Any]) -> None:
    """The forgotten events have the first vector, which fixed the dimension; without them it is another one.

    By default the first vector also starts the re-ranker.
    """
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(ConfigureEvent({"update": "sls", **changes}), *vectors(5, 1, 3, "bad"), *vectors(20, 2, 8))
    await lab.archived()
    assert one.model(DEFAULT_MODEL).live.dimension == 3
    assert one.model(DEFAULT_MODEL).live.reranker.on == (not changes)
    await lab.teach(*vectors(5, 3, 3, "bad"), *vectors(5, 4, 8))
    await lab.run(forget, ForgetParams(source="bad", reason="asked for"))
    await lab.teach(*vectors(5, 5, 8))
    expected = await lab.without(lambda unit, at: unit.source == "bad")
    assert expected.dimension == 8
    await lab.same(one, expected)
    offset = one.model(DEFAULT_MODEL).offset
    digest = await digest_of(expected)
    assert await digest_at(other, offset) == digest
    assert await digest_at(await lab.replica(), offset) == digest
    await lab.run(refit, RefitParams(search={}, passes=3), job="refit")
    digest = await lab.replayed_digest()
    for replica in (one, other, await lab.replica()):
        assert await digest_at(replica, one.model(DEFAULT_MODEL).offset) == digest
    assert one.model(DEFAULT_MODEL).live.dimension == 8
    assert one.model(DEFAULT_MODEL).live.reranker.on == (not changes)


async def test_a_refit_to_sls_starts_the_re_ranker(lab: Lab) -> None:
    """Of a model whose log has vectors that its update did not learn."""
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(ConfigureEvent({"update": "sls"}), *vectors(10, 1, 8))
    await lab.archived()
    await lab.run(refit, RefitParams(search={}, settings={"update": "fsu"}), job="to-fsu")
    assert not one.model(DEFAULT_MODEL).live.reranker.on
    await lab.teach(*vectors(10, 2, 8))
    assert one.model(DEFAULT_MODEL).live.dimension == 0
    await lab.run(refit, RefitParams(search={}, settings={"update": "sls"}), job="to-sls")
    await lab.teach(*vectors(5, 3, 8))
    digest = await lab.replayed_digest()
    for replica in (one, other, await lab.replica()):
        live = replica.model(DEFAULT_MODEL).live
        assert live.config.rerank is None
        assert live.reranker.arrays.counts.sum() == 25
        assert await digest_at(replica, replica.model(DEFAULT_MODEL).offset) == digest


async def test_a_refit_with_more_codes_encodes_the_vectors_of_the_log_again(lab: Lab) -> None:
    one, other = await lab.replica(), await lab.replica()
    await lab.teach(ConfigureEvent({"update": "sls"}), *vectors(20, 1, 8))
    await lab.archived()
    await lab.teach(*vectors(20, 2, 8))
    before = await lab.without(lambda unit, at: False)
    assert not high_codes(before)
    await lab.run(refit, RefitParams(passes=1, search={}, settings={"codes": 16384}))
    expected = LiveModel((await lab.living()).config.with_changes({"update": "sls", "codes": 16384}), (5, 6))
    for at, event in lab.past[1:]:
        apply(expected, at, event)
    expected.continue_score(before)
    assert high_codes(expected)
    for replica in (one, other, await lab.replica()):
        assert await digest_at(replica, one.model(DEFAULT_MODEL).offset) == await digest_of(expected)
        live = replica.model(DEFAULT_MODEL).live
        assert live.config.codes == 16384
        for kind in range(3):
            axis = live.vectorizer.vectorize(None, None, quantize(np.eye(8)[kind]))
            assert ranked(live, axis) == ranked(expected, axis)
            assert ranked(live, axis)[0][0] == f"class {kind}"


def high_codes(live: LiveModel) -> set[int]:
    """The codes of a model that exist only if it has 16,384."""
    return {code for code in range(4096, 16384) if live.features.find(PREFIX + b"%d" % code) >= 0}


def ranked(live: LiveModel, vector: bytes) -> list[tuple[str, float, float]]:
    ranking = live.rank_estimated(vector, 5)
    values = zip(ranking.class_ids.tolist(), ranking.scores.tolist(), ranking.probabilities.tolist(), strict=True)
    return [(live.label(class_id), score, probability) for class_id, score, probability in values]
