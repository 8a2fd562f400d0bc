"""Requests that have nothing but features, read the short way, against the decoder of all requests."""

import asyncio
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from abound.api import decoding
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
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel
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
