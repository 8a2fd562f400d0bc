"""Requests and answers that go a short way, against the one that all others go."""

import asyncio
import gc
import json
import weakref

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from abound.api import decoding
from abound.api.answer_json import AnswerEncoder
from abound.api.decoding import Warnings, decode, sole_features, vector_immediately
from abound.api.schemas.learn_classify import (
    ClassifyRequest,
    classify_decoder,
    encoder,
    labelled_decoder,
    learn_decoder,
)
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, InvalidInstance
from abound_core.instances.record import pack_labels
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from abound_core.types import START, Offset, Ranking
from tests.randomness import examples

LIVE = LiveModel(ModelConfig(), (1, 2), Limits())


def read_whole(body: bytes) -> tuple[bytes, ClassifyRequest] | None:
    """Vector and request by the decoder, None where it refuses."""
    try:
        request = decode(classify_decoder, body)
        return vector_immediately(LIVE, request, Warnings()), request
    except AboundError:
        return None


def read_short(body: bytes) -> bytes | None:
    features = sole_features(body)
    return None if features is None else LIVE.vectorizer.vectorize_usual(features)


PIECES = (
    b"""{"features":|{"features": |{|}|"a":1|"b": 0.5|,|"k":5|"text":"x"|null|"c":{"d":1}|"e":["f"]|"\xff":1|"g":-1"""
)
MORE = [b'"features":{"z":1}', b" ", b"\n", b"[", b"]", b'"']
pieces = st.lists(st.sampled_from([*PIECES.split(b"|"), *MORE]), max_size=9).map(b"".join)
objects = st.dictionaries(
    st.text(max_size=4), st.one_of(st.floats(0, 9), st.text(max_size=3), st.booleans()), max_size=4
)


@settings(max_examples=examples(1500))
@given(
    st.one_of(
        pieces,
        pieces.map(lambda rest: b'{"features":{' + rest + b"}}"),
        objects.map(lambda one: json.dumps({"features": one}).encode()),
        objects.map(lambda one: json.dumps({"features": one}, separators=(",", ":"), ensure_ascii=False).encode()),
    )
)
@example(b'{"features":{"a":1},"k":{}}')
@example(b'{"features":{"a":1},"features":{"b":1}}')
@example(b'{"features":}')
@example(b'{"features":{}}')
@example(b'{"features":  {"a":1}}')
@example(b'{"features":{"a":1}}}')
def test_the_short_way_gives_what_the_whole_way_gives_or_nothing(body: bytes) -> None:
    short = read_short(body)
    if short is not None:
        whole = read_whole(body)
        assert whole is not None
        assert whole[0] == short
        asked = whole[1]
        assert (asked.k, asked.version, asked.include, asked.instances) == (10, None, None, None)


@pytest.mark.parametrize("body", [b'{"features": {"a": 1, "b": "x"}}', b'{"features":{"a":0.25,"c":["d"]}}'])
def test_usual_requests_go_the_short_way(body: bytes) -> None:
    assert read_short(body) is not None


@pytest.mark.parametrize("body", [b'{"features": {"a": 1}, "k": 3}', b'{"text": "a"}', b'{"features": {"a": 1}} ', b""])
def test_others_do_not(body: bytes) -> None:
    assert read_short(body) is None


leaves = st.none() | st.integers(-9, 9) | st.text('a,"\\[]{}:é\n', max_size=5)
instances = st.fixed_dictionaries(
    {},
    optional={
        "features": st.dictionaries(st.text('a,"\\[]{}:', max_size=4), leaves | st.lists(st.text(max_size=3))),
        "text": st.text('ab ,"\\[]{}') | st.dictionaries(st.sampled_from(["a", "features"]), st.text(max_size=3)),
        "labels": st.lists(st.text("a,]", min_size=1, max_size=3)),
    },
)


@settings(max_examples=examples(300))
@given(st.lists(instances, min_size=1, max_size=5), st.booleans(), st.integers(1, 5), st.sampled_from([None, 1]))
def test_a_batch_in_parts_is_the_whole(given, is_ascii, most, indent):
    body = json.dumps({"wait": "log", "instances": given, "source": "a],["}, ensure_ascii=is_ascii, indent=indent)

    async def in_parts():
        return await decoding.decode_batch(
            learn_decoder, body.encode(), "instances", labelled_decoder, most, max_work=10_000
        )

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(decoding, "LARGE_BODY", 0)
        if len(given) > most:
            with pytest.raises(InvalidInstance, match=f"at most {most}, not {len(given)}"):
                asyncio.run(in_parts())
        else:
            assert encoder.encode(asyncio.run(in_parts())) == encoder.encode(decode(learn_decoder, body.encode()))


ODD = ["plain", 'quo"te', "back\\slash", "\n\t\x00\x1f", "é", "\U0001f600", "</script>", "%b{}", "x" * 512]


def model_of(labels: list[str]) -> LiveModel:
    model = LiveModel(ModelConfig(), (3, 4))
    for label in labels:
        record = model.vectorizer.vectorize(b'{"f": 1}', None) + pack_labels([label], model.limits)
        model.begin(record, 1, [Unit(1)]).finish()
    return model


def test_an_answer_made_of_bytes_is_the_one_made_of_values() -> None:
    model = model_of(ODD)
    answers = AnswerEncoder()
    some = np.array([1.0, 0.1, 1 / 3, 5e-324, 1e22, 123456789.125, 1e-7, 0.30000000000000004, 2.5, 1e16])
    for n in (0, 1, 2, len(ODD)):
        ranking = Ranking(np.arange(n, dtype=np.int32)[::-1], some[:n])
        for offset in (START, Offset(1763600000000, 0, 3), Offset(1763600000000, 0, 4)):
            plain = answers.plain(model, ranking, offset)
            assert plain == encoder.encode(answers.explained(model, b"", ranking, offset, ClassifyRequest()))


def test_models_do_not_share_labels_and_are_let_go() -> None:
    answers = AnswerEncoder()
    one, other = model_of(["one"]), model_of(["other"])
    ranking = Ranking(np.zeros(1, np.int32), np.ones(1))
    for _ in range(2):
        assert b'"one"' in answers.plain(one, ranking, START)
        assert b'"other"' in answers.plain(other, ranking, START)
    left = [weakref.ref(one), weakref.ref(other)]
    del one, other
    gc.collect()
    assert [model() for model in left] == [None, None]
