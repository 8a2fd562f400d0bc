"""The asyncio client, and one model accessed through it.

Tasks may share a client; it keeps its connections open and reuses them. Its methods have the names, answers and errors
of those of ``Client``.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from abound.api.schemas.learn_classify import ClassifyAnswer, LearnAnswer
from abound.client.errors import (
    DEFAULT_URL,
    Answer,
    ClientError,
    Interrupted,
    Refused,
    bearer_header,
    convert_answer,
    decode,
    decode_document,
    environment_errors,
    is_on_this_machine,
    model_exists,
    no_cookies,
    normalize_url,
    refusal_of_response,
    transport_errors,
)
from abound.client.instances import (
    IN_FLIGHT,
    ClassifyOptions,
    Features,
    Fields,
    InputInstance,
    InputText,
    Labelled,
    LearnKwargs,
    Outgoing,
    as_instance,
    classify_encoder,
    classify_request,
    learn_encoder,
    learn_request,
    rows_of,
    to_answer,
)
from abound.client.local_service import MEMORY, own_service
from abound.client.requests import NDJSON, Call, in_thread, job_path, model_path, pass_trace_on, read_pieces
from abound.client.resources import ModelLabels, Resources
from abound.client.retries import Attempts
from abound.client.streams import (
    CLASSIFY_IN_FLIGHT,
    LinesRequest,
    bounded_async,
    check_in_flight,
    complete_answers,
    read_answers,
)

Lines = Iterable[bytes | None] | AsyncIterable[bytes | None]


class AsyncClient(
    Resources[Coroutine[Any, Any, Answer], Coroutine[Any, Any, None], AsyncIterable[bytes], AsyncIterator[bytes]]
):
    """Client of the service at a URL. Uses the proxy that the environment names, except for a service on this machine.

    Parameters
    ----------
    url : str or None
        Default: ``ABOUND_URL``, else http://127.0.0.1:8000. ``:memory:`` starts a temporary service for tests, as
        ``Client`` does. The constructor returns once it is ready, and the event loop waits as long.
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII. Default: ``ABOUND_KEY``; empty: none.
    timeout : float
        Seconds that a connection may stay silent. Activations, snapshots and files have longer timeouts of their own.
    transport : httpx.AsyncBaseTransport or None
        Used instead of the network.
    pause : callable
        Waits the given seconds before another attempt.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        stack = ExitStack()
        self._stop = weakref.finalize(self, stack.close)  # also for a client that is never closed
        if url == MEMORY:
            url, key = stack.enter_context(own_service(worker=True)), ""
        headers = bearer_header(key if key is not None else os.environ.get("ABOUND_KEY"))
        self.url = normalize_url(os.environ.get("ABOUND_URL") or DEFAULT_URL if url is None else url)
        self._pause = pause
        self._answered = False
        with environment_errors(self.url):
            if transport is None and is_on_this_machine(self.url):
                transport = httpx.AsyncHTTPTransport()  # an explicit transport ignores proxies
                headers |= {"accept-encoding": "identity"}  # compression takes longer than loopback
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=headers,
                timeout=timeout,
                transport=transport,
                cookies=no_cookies(),
                event_hooks={"request": [pass_trace_on]},
            )

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, and stop the service of a client of ``:memory:``."""
        await self._http.aclose()
        await asyncio.to_thread(self._stop)

    def model(self, name: str = "default") -> AsyncModel:
        """Return access to one model with typed instances and answers. Sends no request."""
        return AsyncModel(self, name)

    async def follow(self, job: str | Mapping[str, Any]) -> AsyncGenerator[Answer]:
        """Yield a job, given by its id or its document, each time it changes, the last time when it has ended."""
        attempts, path = Attempts(repeatable=True), job_path(job)
        while True:
            try:
                async for state in self._events(f"{path}/events"):
                    if "ended" not in state:
                        raise Interrupted(f"{self.url} sent an event that is not a job", [], 1)
                    attempts.reset()
                    yield state
                    if state["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                await self._pause(attempts.pause_after(error) if pause is None else pause)

    async def wait(self, job: str | Mapping[str, Any]) -> Answer:
        """Return a job, given by its id or its document, once it has ended."""
        async for state in self.follow(job):
            if state["ended"] is not None:
                return state
        raise AssertionError("follow ends with a job that has ended")

    # Streams

    def classify_stream(self, name: str, lines: Lines, *, in_flight: int = CLASSIFY_IN_FLIGHT) -> AsyncIterator[Answer]:
        """Classify any number of lines and yield an answer for each, in order. ``refusal_of`` detects refused lines.

        Parameters
        ----------
        name : str
        lines : iterable or async iterable of bytes or None
            A JSON document each, with or without a line break, like the lines of a file opened in binary mode.
            A blank line, or a document that spans lines, raises ValueError: answers could not be matched to lines.
            None sends the pending lines at once, for a source whose next line may take long.
        in_flight : int
            Number of concurrent requests.
        """
        return self._stream(f"{model_path(name)}/classify", lines, True, check_in_flight(in_flight))

    def learn_stream(
        self, name: str, lines: Lines, *, keyed: bool = False, in_flight: int = 1
    ) -> AsyncIterator[Answer]:
        """Learn any number of lines and yield an answer for each, in order. Lines are as in ``classify_stream``.

        Parameters
        ----------
        name : str
        lines : iterable or async iterable of bytes or None
        keyed : bool
            Every line carries an idempotency key, so that all of them may be sent again.
        in_flight : int
            Number of concurrent requests. With more than one, requests may be learned in another order. Even with one,
            lines that are refused for now (429, 503) are learned after the accepted lines of their request.
        """
        return self._stream(f"{model_path(name)}/learn", lines, keyed, check_in_flight(in_flight))

    async def _stream(self, path: str, lines: Lines, repeatable: bool, in_flight: int) -> AsyncIterator[Answer]:
        sent: deque[asyncio.Task[list[Answer]]] = deque()
        requests = bounded_async(lines)
        before = 0
        try:
            while True:
                try:
                    request = await anext(requests, None)
                except Exception:  # raised by the source: it follows the answers to the lines sent
                    async for answer in _in_order(sent):
                        yield answer
                    raise
                if request is None:
                    break
                sent.append(asyncio.create_task(self._lines(path, request, repeatable, before)))
                before += len(request)
                if len(sent) >= in_flight:
                    for answer in await sent[0]:
                        yield answer
                    sent.popleft()
            async for answer in _in_order(sent):
                yield answer
        finally:
            for task in sent:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)

    async def _lines(self, path: str, lines: list[bytes], repeatable: bool, before: int) -> list[Answer]:
        """Send one request until each line has an answer."""
        request = LinesRequest(lines, repeatable, before)
        while request.n_open:
            try:
                pause = request.record_answers(await self._exchange(path, request.body(), request.n_open))
            except ClientError as error:
                pause = request.record_failure(error)
            if pause is not None:
                await self._pause(pause)
        return request.answers()

    async def _exchange(self, path: str, body: bytes, sent: int) -> list[Answer]:
        pieces: list[bytes] = []
        try:
            async with self._open("POST", path, content=body, headers=NDJSON) as response:
                async for piece in response.aiter_bytes():
                    pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            answers = complete_answers(b"".join(pieces), sent)
            if len(answers) == sent:
                return answers
            raise Interrupted(str(error), answers, sent) from error

    # Requests

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, what: str = "the answer", **content: Any
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and provide its response, whose body is read by the caller."""
        with transport_errors(self.url, what):
            async with self._http.stream(method, path, **content) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise refusal_of_response(response)
                yield response

    async def _download(self, path: str) -> AsyncGenerator[bytes]:
        async with self._open("GET", path, "the file") as response:
            async for piece in response.aiter_bytes():
                yield piece

    def _read(self, path: Path) -> AsyncIterator[bytes]:
        return in_thread(read_pieces(path))

    async def _events(self, path: str) -> AsyncIterator[Answer]:
        async with self._open("GET", path, "the events") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield decode(line.removeprefix("data: "))

    async def _delete(self, path: str) -> None:
        await self._ask(Call("DELETE", path, repeatable=False))

    async def _ask(self, call: Call) -> Answer:
        attempts = Attempts(call.repeatable, patient=self._answered)
        while True:
            try:
                answer = await self._once(call)
            except ClientError as error:
                self._answered |= isinstance(error, Refused)
                if call.once:
                    raise
                pause = attempts.pause_after(error)
            else:
                self._answered = True
                return answer
            await self._pause(pause)

    async def _once(self, call: Call) -> Answer:
        with transport_errors(self.url):
            timeout = call.timeout(self._http.timeout)
            response = await self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, timeout=timeout
            )
        return decode_document(response, self.url)


class AsyncModel:
    """One model, accessed through an ``AsyncClient``. Its methods are those of ``Model``.

    The methods for many instances also take ``in_flight``, the number of concurrent requests. More are faster; with
    more than 1, requests may be learned in another order.
    """

    def __init__(self, client: AsyncClient, name: str = "default") -> None:
        self.client = client
        self.name = name
        self.labels: ModelLabels[Coroutine[Any, Any, Answer]] = ModelLabels(client, name)

    def __repr__(self) -> str:
        return f"<AsyncModel {self.name!r} of {self.client.url}>"

    async def create(self, **config: Any) -> Answer:
        """Create the model; see ``Model.create``."""
        if any(one["name"] == self.name for one in (await self.client.models())["models"]):
            raise model_exists(self.name)
        return await self.client.configure(self.name, config)

    async def classify(
        self,
        instance: str | InputInstance | None = None,
        *,
        text: InputText | None = None,
        features: Features | None = None,
        vector: Any = None,
        **options: Unpack[ClassifyOptions],
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first; see ``Model.classify``."""
        request = classify_request(as_instance(instance, text, features, vector), options)
        return convert_answer(await self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    async def learn(
        self,
        instance: str | InputInstance | None = None,
        labels: Sequence[str] = (),
        *,
        text: InputText | None = None,
        features: Features | None = None,
        vector: Any = None,
        **more: Unpack[LearnKwargs],
    ) -> LearnAnswer:
        """Learn one instance with its labels; see ``Model.learn``."""
        request = learn_request(as_instance(instance, text, features, vector), labels, more)
        return convert_answer(await self.client.learn(self.name, request), LearnAnswer, self.client.url)

    async def classify_many(
        self,
        instances: Iterable[str | InputInstance | Fields] | AsyncIterable[str | InputInstance | Fields],
        *,
        in_flight: int = IN_FLIGHT,
        **options: Unpack[ClassifyOptions],
    ) -> AsyncIterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it."""
        sent = Outgoing(classify_encoder(options), instances)
        async for answer in self.client.classify_stream(self.name, sent.lines(), in_flight=in_flight):
            for refused in sent.refused():
                yield refused
            yield to_answer(answer, ClassifyAnswer, self.client.url)
        for refused in sent.refused(ended=True):
            yield refused

    async def learn_many(
        self,
        instances: Iterable[Labelled | Fields] | AsyncIterable[Labelled | Fields],
        *,
        keyed: bool = True,
        in_flight: int = IN_FLIGHT,
        **columns: Any,
    ) -> AsyncIterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it."""
        sent = Outgoing(learn_encoder(keyed), rows_of(instances, columns))
        async for answer in self.client.learn_stream(self.name, sent.lines(), keyed=keyed, in_flight=in_flight):
            for refused in sent.refused():
                yield refused
            yield to_answer(answer, LearnAnswer, self.client.url)
        for refused in sent.refused(ended=True):
            yield refused


async def _in_order(sent: deque[asyncio.Task[list[Answer]]]) -> AsyncIterator[Answer]:
    """Yield the answers of all pending requests. The awaited request stays in the queue, to be cancelled with it."""
    while sent:
        for answer in await sent[0]:
            yield answer
        sent.popleft()
