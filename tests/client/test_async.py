"""What only the client for event loops does; ``Client`` runs one, so the other tests of this folder test it too."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

from abound.client import AsyncClient, AsyncModel, Client, Model, Refused
from tests.client.mock_service import echo, lines, problem


def client(handler: Callable[..., object]) -> AsyncClient:
    return AsyncClient("http://test", transport=httpx.MockTransport(handler))  # type: ignore[arg-type]


async def from_the_loop(given: Iterator[bytes] | list[bytes]) -> AsyncIterator[bytes]:
    for line in given:
        await asyncio.sleep(0)
        yield line


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Model, AsyncModel)])
def test_both_clients_have_the_same_methods_with_the_same_parameters(one: type, other: type) -> None:
    def parameters(kind: type) -> dict[str, set[str]]:
        public = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        return {name: set(inspect.signature(value).parameters) - {"in_flight"} for name, value in public.items()}

    assert parameters(one) == parameters(other)


@pytest.mark.parametrize("source", [list, from_the_loop])
async def test_streams_are_cut_sent_at_once_and_answered_in_order(source: Callable[[list[bytes]], object]) -> None:
    together, sizes = asyncio.Barrier(3), []

    async def echo_three(request: httpx.Request) -> httpx.Response:
        sizes.append(request.content.count(b"\n"))
        async with asyncio.timeout(20):
            await together.wait()
        return httpx.Response(200, content=request.content)

    async with client(echo_three) as made:
        given: object = source(lines(2500))
        answers = [answer["n"] async for answer in made.learn_stream("a/b", given, in_flight=3)]  # type: ignore[arg-type]
    assert answers == list(range(2500))
    assert sorted(sizes) == [500, 1000, 1000]


async def test_an_error_of_one_request_among_several_reaches_the_caller_behind_the_answers_before() -> None:
    def second_is_refused(request: httpx.Request) -> httpx.Response:
        return httpx.Response(413, json=problem(413)) if b'{"n": 1000,' in request.content else echo(request)

    answers = client(second_is_refused).classify_stream("m", lines(3000), in_flight=3)
    assert [(await anext(answers))["n"] for _ in range(1000)] == list(range(1000))
    with pytest.raises(Refused):
        await anext(answers)


@pytest.mark.parametrize("in_flight", [1, 3])
async def test_an_error_of_the_source_comes_behind_the_answers_of_what_was_sent(in_flight: int) -> None:
    def source() -> Iterator[bytes]:
        yield from lines(2400)
        raise OSError("the disk is gone")

    for given in (source(), from_the_loop(source())):
        answers = client(echo).learn_stream("m", given, in_flight=in_flight)
        assert [(await anext(answers))["n"] for _ in range(2000)] == list(range(2000))
        with pytest.raises(OSError, match="the disk is gone"):
            await anext(answers)


async def test_a_stream_that_is_given_up_ends_its_requests() -> None:
    ended = []

    async def slow(request: httpx.Request) -> httpx.Response:
        if b'{"n": 0,' not in request.content:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append(1)
        return echo(request)

    answers = client(slow).learn_stream("m", lines(3000), in_flight=3)
    assert (await anext(answers))["n"] == 0
    await answers.aclose()
    assert ended == [1, 1]
