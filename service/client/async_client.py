"""The asyncio client. Tasks may share an instance; it keeps its connections open and reuses them.

Its methods have the names, answers and errors of those of ``Client``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from abound.service.client import requests as client_requests
from abound.service.client.errors import (
    Answer,
    ClientError,
    Interrupted,
    Refused,
    bearer_header,
    decode,
    decode_document,
    environment_errors,
    is_on_this_machine,
    no_cookies,
    normalize_url,
    refusal_of_response,
    transport_errors,
)
from abound.service.client.requests import Call
from abound.service.client.retries import Attempts
from abound.service.client.streams import (
    CLASSIFY_IN_FLIGHT,
    LinesRequest,
    bounded_async,
    check_in_flight,
    complete_answers,
    read_answers,
)

Lines = Iterable[bytes | None] | AsyncIterable[bytes | None]


class AsyncClient:
    """Client of the service at a URL. Uses the proxy that the environment names, except for a service on this machine.

    Parameters
    ----------
    url : str
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII.
    timeout : float
        Seconds that a connection may stay silent. Activations, snapshots and files have longer timeouts of their own.
    transport : httpx.AsyncBaseTransport or None
        Used instead of the network.
    pause : callable
        Waits the given seconds before another attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        headers = bearer_header(key)
        self.url = normalize_url(url)
        self._pause = pause
        self._answered = False
        with environment_errors(self.url):
            if transport is None and is_on_this_machine(self.url):
                transport = httpx.AsyncHTTPTransport()  # an explicit transport ignores proxies
            self._http = httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=timeout, transport=transport, cookies=no_cookies()
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Resources

    async def ready(self) -> Answer:
        """Return the answer of ``/readyz``. Raises Refused with status 503 while the service is not ready."""
        return await self._ask(client_requests.ready())

    async def models(self) -> Answer:
        """Return all models."""
        return await self._ask(client_requests.models())

    async def model(self, name: str) -> Answer:
        """Return one model with its digest."""
        return await self._ask(client_requests.model(name))

    async def stats(self, name: str) -> Answer:
        """Return the running score of a model, its sizes and its replicas."""
        return await self._ask(client_requests.stats(name))

    async def labels(
        self,
        name: str,
        *,
        prefix: str | None = None,
        contains: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Answer:
        """Return labels that a model knows, at most ``limit`` from ``offset`` on.

        Filter them by ``prefix``, or by a substring with ``contains``.
        """
        return await self._ask(
            client_requests.labels(name, {"prefix": prefix, "contains": contains, "limit": limit, "offset": offset})
        )

    async def label(self, name: str, label: str, *, limit: int | None = None) -> Answer:
        """Return how often a label was learned, and at most ``limit`` features that vote for it, heaviest first."""
        return await self._ask(client_requests.label(name, label, {"limit": limit}))

    async def configure(self, name: str, fields: Answer) -> Answer:
        """Create a model or change fields of its configuration."""
        return await self._ask(client_requests.configure(name, fields))

    async def delete(self, name: str) -> None:
        """Delete a model and everything it learned."""
        await self._ask(client_requests.delete(name))

    async def snapshots(self, name: str) -> Answer:
        """Return the snapshots of a model, newest first."""
        return await self._ask(client_requests.snapshots(name))

    async def snapshot(self, name: str) -> Answer:
        """Request a snapshot."""
        return await self._ask(client_requests.snapshot(name))

    async def versions(self, name: str) -> Answer:
        """Return the versions of a model, newest first."""
        return await self._ask(client_requests.versions(name))

    async def version(self, name: str, version: str) -> Answer:
        """Return one version: the data it was fitted on and its evaluation."""
        return await self._ask(client_requests.version(name, version))

    async def compare_versions(self, name: str, ids: Sequence[str]) -> Answer:
        """Return a comparison of versions."""
        return await self._ask(client_requests.compare_versions(name, ids))

    async def delete_version(self, name: str, version: str) -> None:
        """Delete a version that is not in use."""
        await self._ask(client_requests.delete_version(name, version))

    async def activate(self, name: str, version: str, reason: str = "") -> Answer:
        """Make a version answer the requests that name none. ``live`` stands for the index."""
        return await self._ask(client_requests.activate(name, version, reason))

    async def contenders(self, name: str) -> Answer:
        """Return the challengers and the standings of the contest."""
        return await self._ask(client_requests.contenders(name))

    async def enter_contender(self, name: str, version: str, reason: str = "asked for") -> Answer:
        """Enter a version as a challenger: it is scored on learned instances, and activated once it proves better."""
        return await self._ask(client_requests.enter_contender(name, version, reason))

    async def leave_contest(self, name: str, version: str) -> None:
        """Withdraw a version from the contest. The version is kept, and stays active if it is."""
        await self._ask(client_requests.leave_contest(name, version))

    async def datasets(self) -> Answer:
        """Return the data sets that jobs can learn from."""
        return await self._ask(client_requests.datasets())

    async def dataset(self, name: str) -> Answer:
        """Return one data set."""
        return await self._ask(client_requests.dataset(name))

    async def delete_dataset(self, name: str) -> None:
        """Delete a data set."""
        await self._ask(client_requests.delete_dataset(name))

    async def methods(self) -> Answer:
        """Return the methods of jobs, with the JSON Schema of their parameters."""
        return await self._ask(client_requests.methods())

    async def submit(self, request: Answer, key: str | None = None) -> Answer:
        """Submit a job. ``key`` is an idempotency key, by default a random one."""
        return await self._ask(client_requests.submit(request, key))

    async def jobs(self, *, state: str | None = None, model: str | None = None, limit: int | None = None) -> Answer:
        """Return at most ``limit`` jobs, newest first. Filter them by ``state`` and ``model``."""
        return await self._ask(client_requests.jobs({"state": state, "model": model, "limit": limit}))

    async def job(self, job_id: str) -> Answer:
        """Return one job."""
        return await self._ask(client_requests.job(job_id))

    async def cancel(self, job_id: str) -> Answer:
        """Cancel a job, which may take seconds to stop."""
        return await self._ask(client_requests.cancel(job_id))

    async def classify(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Classify one instance or a batch."""
        return await self._ask(client_requests.classify(name, request))

    async def learn(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Learn one instance or a batch. Retries do not learn it twice."""
        return await self._ask(client_requests.learn(name, request))

    # Files and events

    async def export(self, name: str) -> AsyncIterator[bytes]:
        """Yield a model as one file, piece by piece."""
        async for piece in self._download(f"{client_requests.model_path(name)}/export"):
            yield piece

    async def export_version(self, name: str, version: str) -> AsyncIterator[bytes]:
        """Yield a version as one file, piece by piece."""
        async for piece in self._download(f"{client_requests.version_path(name, version)}/export"):
            yield piece

    async def _download(self, path: str) -> AsyncIterator[bytes]:
        with transport_errors(self.url, "the file"):
            async with self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise refusal_of_response(response)
                async for piece in response.aiter_bytes():
                    yield piece

    async def import_(self, name: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Load an exported file into a model and return the model. Waits until the replicas have loaded it."""
        path = f"{client_requests.model_path(name)}/import"
        with transport_errors(self.url):
            response = await self._http.put(
                path, content=pieces, headers=client_requests.MODEL_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return decode_document(response, self.url)

    async def import_version(self, name: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Add an exported version to a model and return the version."""
        path = f"{client_requests.model_path(name)}/versions"
        with transport_errors(self.url):
            response = await self._http.post(
                path, content=pieces, headers=client_requests.VERSION_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return decode_document(response, self.url)

    async def put_dataset(self, name: str, filename: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Upload a data set and return it. The suffix of ``filename`` names its format."""
        with transport_errors(self.url):
            response = await self._http.put(
                client_requests.dataset_path(name),
                params={"filename": filename},
                content=pieces,
                headers=client_requests.DATA_FILE,
                timeout=client_requests.DATASET_SECONDS,
            )
        return decode_document(response, self.url)

    async def follow(self, job_id: str) -> AsyncIterator[Answer]:
        """Yield a job each time it changes, the last time when it has ended."""
        attempts = Attempts(repeatable=True)
        while True:
            try:
                async for job in self._events(f"{client_requests.job_path(job_id)}/events"):
                    if "ended" not in job:
                        raise Interrupted(f"{self.url} sent an event that is not a job", [], 1)
                    attempts.reset()
                    yield job
                    if job["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                await self._pause(attempts.pause_after(error) if pause is None else pause)

    async def _events(self, path: str) -> AsyncIterator[Answer]:
        """Yield the data of server-sent events."""
        with transport_errors(self.url, "the events"):
            async with self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise refusal_of_response(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield decode(line.removeprefix("data: "))

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
        return self._stream(f"{client_requests.model_path(name)}/classify", lines, True, check_in_flight(in_flight))

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
        return self._stream(f"{client_requests.model_path(name)}/learn", lines, keyed, check_in_flight(in_flight))

    async def _stream(self, path: str, lines: Lines, repeatable: bool, in_flight: int) -> AsyncIterator[Answer]:
        sent: deque[asyncio.Task[list[Answer]]] = deque()
        requests = bounded_async(lines)
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
                sent.append(asyncio.create_task(self._lines(path, request, repeatable)))
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

    async def _lines(self, path: str, lines: list[bytes], repeatable: bool) -> list[Answer]:
        """Send one request until each line has an answer."""
        request = LinesRequest(lines, repeatable)
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
            with transport_errors(self.url):
                async with self._http.stream("POST", path, content=body, headers=client_requests.NDJSON) as response:
                    if response.status_code != 200:
                        await response.aread()
                        raise refusal_of_response(response)
                    async for piece in response.aiter_bytes():
                        pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            raise Interrupted(str(error), complete_answers(b"".join(pieces), sent), sent) from error

    # Single requests

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


async def _in_order(sent: deque[asyncio.Task[list[Answer]]]) -> AsyncIterator[Answer]:
    """Yield the answers of all pending requests. The awaited request stays in the queue, to be cancelled with it."""
    while sent:
        for answer in await sent[0]:
            yield answer
        sent.popleft()
