"""The client for event loops: it does what the other one does."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace

import httpx
import pytest

from abound.client import AsyncClient, AsyncModel, Client, Interrupted, Labelled, Model, Refused, Unreachable
from abound.client import streams as lines_of_a_request

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Cut(httpx.AsyncByteStream):
    """An answer that breaks off behind these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        raise httpx.RemoteProtocolError("peer closed the connection")


def client(handler: Handler, pauses: list[float] | None = None) -> AsyncClient:
    async def pause(seconds: float) -> None:
        if pauses is not None:
            pauses.append(seconds)

    return AsyncClient("http://test", transport=httpx.MockTransport(handler), pause=pause)


def lines(n: int) -> list[bytes]:
    return [json.dumps({"n": i}).encode() for i in range(n)]


async def from_the_loop(n: int) -> AsyncIterator[bytes]:
    for line in lines(n):
        await asyncio.sleep(0)
        yield line


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Model, AsyncModel)])
def test_both_clients_have_the_same_methods_with_the_same_parameters(one: type, other: type) -> None:
    def parameters(kind: type) -> dict[str, set[str]]:
        public = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        return {name: set(inspect.signature(value).parameters) - {"in_flight"} for name, value in public.items()}

    assert parameters(one) == parameters(other)


@pytest.mark.parametrize("source", [lines, from_the_loop])
async def test_streams_are_cut_sent_at_once_and_answered_in_order(source: Callable[[int], list[bytes]]) -> None:
    together, sizes = asyncio.Barrier(3), []

    async def echo(request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        sizes.append(body.count(b"\n"))
        async with asyncio.timeout(20):
            await together.wait()
        return httpx.Response(200, content=body)

    async with client(echo) as made:
        answers = [answer["n"] async for answer in made.learn_stream("a/b", source(2500), in_flight=3)]
    assert answers == list(range(2500))
    assert sorted(sizes) == [500, 1000, 1000]


@pytest.mark.parametrize("line", [b"\n", b'{"n":\n2}'])
@pytest.mark.parametrize("in_the_loop", [False, True])
async def test_a_line_that_would_shift_the_answers_is_an_error(line: bytes, in_the_loop: bool) -> None:
    async def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=await request.aread())

    async def source() -> AsyncIterator[bytes]:
        for one in given:
            yield one

    given = [*lines(2), line, *lines(1)]
    answers = client(echo).learn_stream("m", source() if in_the_loop else given)
    assert [(await anext(answers))["n"] for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match=r"^line 3 of the stream"):
        await anext(answers)
    given[2] = b'{"n": 2}\n'
    answers = client(echo).learn_stream("m", source() if in_the_loop else given)
    assert [answer["n"] async for answer in answers] == [0, 1, 2, 0]


@pytest.mark.parametrize("source", [lines, from_the_loop])
async def test_a_request_of_a_slow_source_is_closed_by_the_next_line(
    source: Callable[[int], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, sizes = iter([5.0, 5.4, 5.9, 6.0, 6.3, 7.2, 7.3, 9.0, 9.1]), []
    monkeypatch.setattr(lines_of_a_request, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    async def echo(request: httpx.Request) -> httpx.Response:
        sizes.append((await request.aread()).count(b"\n"))
        return httpx.Response(200, content=request.content)

    assert [answer["n"] async for answer in client(echo).learn_stream("m", source(9))] == list(range(9))
    assert sizes == [4, 3, 2]


async def test_an_error_of_one_request_among_several_reaches_the_caller_behind_the_answers_before() -> None:
    async def second_is_refused(request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        fields = {"title": "X", "status": 413}
        return httpx.Response(413, json=fields) if b'{"n": 1000}' in body else httpx.Response(200, content=body)

    answers = client(second_is_refused).classify_stream("m", lines(3000), in_flight=3)
    assert [(await anext(answers))["n"] for _ in range(1000)] == list(range(1000))
    with pytest.raises(Refused):
        await anext(answers)


async def test_an_interrupted_learn_is_sent_again_only_with_keys() -> None:
    calls = []

    async def once_cut(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        body = await request.aread()
        return (
            httpx.Response(200, stream=Cut(b'{"n": 0}\n{"n"')) if len(calls) == 1 else httpx.Response(200, content=body)
        )

    made = client(once_cut)
    assert [answer["n"] async for answer in made.learn_stream("m", lines(3), keyed=True)] == [0, 1, 2]
    calls.clear()
    with pytest.raises(Interrupted) as raised:
        [answer async for answer in made.learn_stream("m", lines(3))]
    assert raised.value.answers == [{"n": 0}]
    assert raised.value.sent == 3
    assert len(calls) == 1


async def test_refusals_and_a_service_that_is_away() -> None:
    pauses: list[float] = []
    answers = [httpx.ConnectError("refused"), 200, httpx.ConnectError("refused"), 503, 200, 404]

    async def each(request: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, httpx.ConnectError):
            raise answer
        fields = {} if answer == 200 else {"title": "X", "status": answer, "detail": "so", "retry_after": 2}
        return httpx.Response(answer, json=fields)

    made = client(each, pauses)
    with pytest.raises(Unreachable):
        await made.models()
    assert await made.models() == {}
    assert await made.models() == {}
    assert pauses == [0.5, 2.0]
    with pytest.raises(Refused, match=r"so \(404\)"):
        await made.describe("x")


@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
@pytest.mark.parametrize("in_the_loop", [False, True])
async def test_an_error_of_the_source_comes_behind_the_answers_of_what_was_sent(
    in_flight: int, in_the_loop: bool
) -> None:
    async def echo(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=await request.aread())

    def source() -> Iterator[bytes]:
        yield from lines(2400)
        raise OSError("the disk is gone")

    async def from_a_loop() -> AsyncIterator[bytes]:
        for line in source():
            yield line

    answers = client(echo).learn_stream("m", from_a_loop() if in_the_loop else source(), in_flight=in_flight)
    assert [(await anext(answers))["n"] for _ in range(2000)] == list(range(2000))
    with pytest.raises(OSError, match="the disk is gone"):
        await anext(answers)


async def test_streams_and_jobs_that_are_followed_wait_for_a_service_that_is_starting() -> None:
    calls = []

    async def starting(request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        calls.append(1)
        if len(calls) <= 20:
            said = {"type": "/problems/not-ready", "title": "X", "status": 503, "retry_after": 1}
            return httpx.Response(503, json=said)
        return httpx.Response(200, content=body or b'data: {"ended": 1}\n\n')

    pauses: list[float] = []
    made = client(starting, pauses)
    assert [answer["n"] async for answer in made.learn_stream("m", lines(3))] == [0, 1, 2]
    calls.clear()
    assert [job async for job in made.follow("a")] == [{"ended": 1}]
    assert pauses == [1.0] * 40


async def test_a_stream_that_is_given_up_ends_its_requests() -> None:
    ended = []

    async def slow(request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        if b'{"n": 0}' not in body:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(1)
        return httpx.Response(200, content=body)

    answers = client(slow).learn_stream("m", lines(3000), in_flight=3)
    assert (await anext(answers))["n"] == 0
    await answers.aclose()
    assert ended == [1, 1]


async def test_a_refused_line_has_its_number_in_the_stream() -> None:
    async def refuse_last(request: httpx.Request) -> httpx.Response:
        sent = (await request.aread()).splitlines()
        bad = json.dumps({"title": "X", "status": 422, "detail": "no label", "line": len(sent)})
        return httpx.Response(200, content=b"\n".join([*sent[:-1], bad.encode()]))

    answers = [answer async for answer in client(refuse_last).learn_stream("m", lines(2500), in_flight=3)]
    assert [one["line"] for one in answers if "line" in one] == [1000, 2000, 2500]


async def test_a_model_gives_keys_and_types() -> None:
    seen = []

    async def learned(request: httpx.Request) -> httpx.Response:
        sent = [json.loads(line) for line in (await request.aread()).splitlines()]
        seen.extend(sent)
        fine = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": 2, "updated": True}
        bad = {"title": "X", "status": 422, "detail": "no label", "field": "labels"}
        return httpx.Response(200, content="\n".join(json.dumps(fine if one["labels"] else bad) for one in sent))

    async def instances() -> AsyncIterator[Labelled]:
        yield Labelled(text="a", labels=["x"])
        yield Labelled(features={"b": 1.5}, labels=[], key="mine")

    model = AsyncModel(client(learned), "m")
    first, second = [answer async for answer in model.learn_many(instances())]
    assert not isinstance(first, Refused)
    assert first.rank == 2
    assert isinstance(second, Refused)
    assert second.problem["field"] == "labels"
    assert seen[0]["key"].endswith(":1")
    assert seen[1] == {"features": {"b": 1.5}, "labels": [], "key": "mine"}


async def test_an_answer_that_cannot_be_read_is_an_error_of_the_client() -> None:
    async def broken(request: httpx.Request) -> httpx.Response:
        class NoGzip(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield b"no gzip at all"

        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=NoGzip())

    async def other(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"labels": "none", "applied": 3})

    for handler in (broken, other):
        async with client(handler) as made:
            model = AsyncModel(made, "m")
            with pytest.raises(Interrupted):
                await model.classify(text="a")
            with pytest.raises(Interrupted):
                await model.learn("a", ["x"])
            with pytest.raises(Interrupted):
                [one async for one in model.learn_many([Labelled(text="a", labels=["x"])])]
