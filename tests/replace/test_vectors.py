"""Models that learn from vectors: replicas agree after a restart, a forget and a refit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from abound.jobs.replace import forget, refit
from abound.log.catalog import DEFAULT_MODEL
from abound.log.events import ConfigureEvent, LearnEvent
from abound.processes.encoder_files import use_encoders
from abound.replace.forget import ForgetParams
from abound.replace.refit import RefitParams
from abound_core.config import ModelConfig
from abound_core.instances import text_encoder
from abound_core.instances.codes_kernels import PREFIX
from abound_core.instances.dense_vector import quantize
from abound_core.instances.record import add_details, pack_labels
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
    """The labels of an instance, with their scores and probabilities."""
    ranking = live.rank_estimated(vector, 5)
    values = zip(ranking.class_ids.tolist(), ranking.scores.tolist(), ranking.probabilities.tolist(), strict=True)
    return [(live.label(class_id), score, probability) for class_id, score, probability in values]


ALL_PARTS: dict[str, Any] = {
    "update": "sls",
    "analyzer": {"embed": "wordllama"},
    "codes": 16384,
    "rerank": True,
    "max_features": 10,
}

TOPICS = {
    "lost": ["my", "card", "was", "stolen", "and", "someone", "took", "the", "purse"],
    "travel": ["book", "a", "flight", "or", "train", "from", "Rome", "to", "Paris"],
    "weather": ["will", "rain", "snow", "and", "wind", "come", "tomorrow", "morning"],
}


def instances_of_all_kinds(n: int, seed: int, source: str | None = None) -> list[LearnEvent]:
    """Events of an instance each: a text to encode, one with a vector of its own, or features without a vector."""
    rng, vectorizer = np.random.default_rng(seed), Vectorizer(ModelConfig.from_dict(ALL_PARTS), Limits())
    events = []
    for i in range(n):
        label = list(TOPICS)[i % 3]
        text = " ".join(rng.choice(TOPICS[label], 4))
        vector = (
            vectorizer.vectorize(None, text),
            vectorizer.vectorize(None, text, quantize(rng.normal(0, 1, 256))),
            vectorizer.vectorize(b'{"%b": 1}' % rng.choice(TOPICS[label]).encode(), None),
        )[i // 3 % 3]
        events.append(LearnEvent(vector + pack_labels([label], Limits()), 1, [Unit(1, source=source)]))
    return events


def names_of_topics(kind: str, source: str | None = None) -> list[LearnEvent]:
    """Registrations of a label each, whose names are encoded."""
    vectorizer = Vectorizer(ModelConfig.from_dict(ALL_PARTS), Limits())
    return [
        LearnEvent(
            add_details(
                vectorizer.vectorize(None, f"{kind} {label}") + pack_labels([label], Limits()),
                b'{"name":"%b"}' % label.encode(),
            ),
            1,
            [Unit(1, source=source)],
        )
        for label in TOPICS
    ]


def answers(live: LiveModel) -> list[Any]:
    """The answers to a text that is encoded, to one with a vector of its own, and to features without a vector."""
    vectorizer = live.vectorizer
    asked = [
        vectorizer.vectorize(None, "someone has stolen my card"),
        vectorizer.vectorize(None, "rain in Rome", quantize(np.arange(-100, 156))),
        vectorizer.vectorize(json.dumps({word: 1 for words in TOPICS.values() for word in words}).encode(), None),
    ]
    return [ranked(live, vector) for vector in asked]


async def test_replicas_agree_with_every_part_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder, more codes, names, re-ranking, calibration, and a bound of features."""
    monkeypatch.setattr(text_encoder, "source", text_encoder.source)
    use_encoders(None)
    one, other = await lab.replica(), await lab.replica()

    async def agree(*more: LiveModel) -> list[Any]:
        """Check that both replicas and one that starts now, from a snapshot, are equal; return their answers."""
        offset = (await lab.elements())[-1][0]
        replicas = [one, other, await lab.replica()]
        digests = {await digest_at(replica, offset) for replica in replicas} | {await digest_of(live) for live in more}
        lives = [*more, *(replica.model(DEFAULT_MODEL).live for replica in replicas)]
        found = [answers(live) for live in lives]
        assert len(digests) == 1
        assert all(given == found[0] for given in found)
        assert all(found[0])
        live = lives[-1]
        assert len(live.features) - live.features.count_longer(PREFIX) == live.config.max_features
        assert high_codes(live)
        assert (live.dimension, len(live.details)) == (256, 3)
        assert live.calibration.on
        assert live.reranker.on
        await lab.stop(replicas[-1])
        return found[0]

    await lab.teach(ConfigureEvent(ALL_PARTS), *names_of_topics("ask about"), *instances_of_all_kinds(27, 1))
    await lab.teach(*names_of_topics("problem of", "bad"), *instances_of_all_kinds(18, 2, "bad"))
    await lab.archived()
    await lab.teach(*instances_of_all_kinds(9, 3, "bad"))
    learned = await agree(await lab.without(lambda unit, at: False))
    assert learned[0][0][0] == "lost"
    await lab.run(forget, ForgetParams(source="bad", reason="asked for"))
    await lab.teach(*instances_of_all_kinds(9, 4))
    expected = await lab.without(lambda unit, at: unit.source == "bad")
    assert expected.n_learned == 27 + 9
    assert await agree(expected) != learned
    await lab.run(refit, RefitParams(search={}, passes=2), job="refit")
    refitted = await agree()
    assert refitted[0][0][0] == "lost"
    assert await digest_at(one, one.model(DEFAULT_MODEL).offset) == await lab.replayed_digest()
