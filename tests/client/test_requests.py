"""What single requests carry: keys, numbers of numpy, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from abound.client import (
    AsyncClient,
    Client,
    InputInstance,
    Labelled,
    Model,
)
from abound.client import requests as calls
from tests.client.mock_service import client, echo, problem


def test_the_key_travels_as_bearer_token() -> None:
    def check(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"token": request.headers["Authorization"]})

    made = Client("http://test", key="secret", transport=httpx.MockTransport(check))
    assert made.models() == {"token": "Bearer secret"}


def test_what_numpy_holds_is_sent_as_what_it_is() -> None:
    bodies = []

    def keep(request: httpx.Request) -> httpx.Response:
        bodies.append({name: one for name, one in json.loads(request.read()).items() if name != "key"})
        answer = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": 2, "updated": True}
        return httpx.Response(200, json=answer)

    model = Model(client(keep), "m")
    features: Any = {np.str_("a"): np.float64(2.5), "b": np.float32(0.5), "c": np.int64(3), "d": np.bool_(True)}
    labels: Any = np.array(["x", "y"])
    model.learn(labels=labels, features=features)
    list(model.learn_many([Labelled(labels=labels, features=features)]))
    model.client.learn("m", {"features": features, "labels": labels})
    assert bodies == [{"features": {"a": 2.5, "b": 0.5, "c": 3, "d": True}, "labels": ["x", "y"]}] * 3
    with pytest.raises(TypeError, match="a complex cannot be sent"):
        model.learn(labels=["x"], features={"a": 1j})
    assert calls.encode([np.longdouble(1.5), np.array([0.5], np.longdouble), np.array(["a", 1], object)]) == (
        b'[1.5,[0.5],["a",1]]'
    )


def test_many_instances_are_texts_structs_or_dicts() -> None:
    sent: list[dict[str, Any]] = []

    def keep(request: httpx.Request) -> httpx.Response:
        rows = [json.loads(line) for line in request.read().splitlines()]
        sent.extend(rows)
        return httpx.Response(200, content="\n".join([json.dumps(problem(422))] * len(rows)))

    model = Model(client(keep), "m")
    list(
        model.classify_many(["wheat", InputInstance(features={"a": 1}), {"text": "b", "vector": np.ones(1, "f4")}], k=3)
    )
    assert sent == [
        {"text": "wheat", "k": 3},
        {"features": {"a": 1}, "k": 3},
        {"text": "b", "vector": {"base64": "AACAPw==", "dtype": "float32"}, "k": 3},
    ]
    sent.clear()
    list(model.learn_many([Labelled(text="a", labels=["x"]), {"text": "b", "labels": ["y"], "key": "k"}, {}]))
    keys = [one.pop("key") for one in sent]
    assert (sent, len(set(keys)), keys[1]) == (
        [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["y"]}, {}],
        3,
        "k",
    )
    wrong: Any = [("a", ["x"])]
    with pytest.raises(TypeError, match="an instance is a Labelled or a dict of its fields, not tuple"):
        list(model.learn_many(wrong))
    with pytest.raises(TypeError, match="a text, an InputInstance or a dict of its fields, not int"):
        list(model.classify_many([3]))  # type: ignore[list-item]
    with pytest.raises(TypeError, match="'txt'"):
        list(model.classify_many([{"txt": "a"}]))


@pytest.mark.parametrize(
    "value",
    [
        np.array([b"red"]),
        np.bytes_(b"red"),
        np.datetime64("2020-01-01", "ns"),
        np.datetime64("2020-01-01", "s"),
        np.timedelta64(1, "ns"),
        np.clongdouble(1),
        np.zeros(1, "i4,i4"),
    ],
    ids=str,
)
def test_what_would_become_something_else_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        calls.encode({"a": value})


def test_no_cookie_is_kept() -> None:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append("cookie" in request.headers)
        return httpx.Response(200, headers=[(b"Set-Cookie", b"replica=2"), (b"Set-Cookie", b"\xff=1")], json={})

    made = client(answer)
    made.models()
    made.models()
    assert sent == [False, False]


@pytest.mark.parametrize("key", ["abk_é", "abk_1\n", "abk_1\r\nX: y"])
def test_a_key_that_cannot_travel_is_refused_at_once(key: str) -> None:
    for make in (Client, AsyncClient):
        with pytest.raises(ValueError, match="printable ASCII"):
            make("http://test", key=key)
    with pytest.raises(ValueError, match="printable ASCII"):
        client(echo).submit({}, key=key)


@pytest.mark.parametrize("name", [None, "other"])
async def test_a_data_set_is_a_file(name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "news.jsonl.gz"
    file.write_bytes(bytes(range(256)) * 5000)
    seen: list[tuple[str, bytes]] = []

    def keep(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.content))
        return httpx.Response(201, json={})

    async def read_and_keep(request: httpx.Request) -> httpx.Response:
        await request.aread()
        return keep(request)

    def read_first(request: httpx.Request) -> httpx.Response:
        request.read()
        return keep(request)

    client(read_first).put_dataset(file, name)
    async with AsyncClient("http://test", transport=httpx.MockTransport(read_and_keep)) as other:
        await other.put_dataset(str(file), name)
    url = f"http://test/datasets/{name or 'news'}?filename=news.jsonl.gz"
    assert seen == [(url, file.read_bytes())] * 2
    with pytest.raises(FileNotFoundError):
        client(read_first).put_dataset(tmp_path / "missing.jsonl")


def test_one_column_of_a_data_set_is_a_string_or_a_list() -> None:
    made = client(lambda request: httpx.Response(201, json={"url": str(request.url)}))
    urls = {
        made.put_dataset("a.csv", pieces=[b""], text=text, ignore=ignore)["url"]
        for text, ignore in (("subject", "id"), (["subject"], ("id",)))
    }
    assert urls == {"http://test/datasets/a?filename=a.csv&text=subject&ignore=id"}
