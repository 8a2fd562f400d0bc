"""A client for programs with an event loop. Tasks may share one; its connections are kept and used again.

The methods are those of ``Client``, with the same names, answers and errors.
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
    address,
    bearer,
    decode,
    document,
    is_on_this_machine,
    no_cookies,
    of_environment,
    refused,
    told_apart,
)
from abound.service.client.requests import Call
from abound.service.client.retries import Attempts
from abound.service.client.streams import CLASSIFYING, LinesRequest, abounded, checked, read_answers, whole_lines

Lines = Iterable[bytes | None] | AsyncIterable[bytes | None]


class AsyncClient:
    """Talks to the service at a URL: through the proxy that the environment names, unless it is on this machine.

    Parameters
    ----------
    url : str
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII.
    timeout : float
        Seconds that a connection may stay silent; longer for what the service may take longer for: activations,
        snapshots and files.
    transport : httpx.AsyncBaseTransport or None
        In the place of the network.
    pause : callable
        Waits so many seconds before another attempt.
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
        headers = bearer(key)
        self.url = address(url)
        self._pause = pause
        self._answered = False
        with of_environment(self.url):
            if transport is None and is_on_this_machine(self.url):
                transport = httpx.AsyncHTTPTransport()  # a given transport takes no proxy
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
        """What ``/readyz`` says; Refused with 503 while the service is not ready."""
        return await self._ask(client_requests.ready())

    async def models(self) -> Answer:
        """All models."""
        return await self._ask(client_requests.models())

    async def model(self, name: str) -> Answer:
        """One model with its digest."""
        return await self._ask(client_requests.model(name))

    async def stats(self, name: str) -> Answer:
        """The running score of a model, its sizes, and its replicas."""
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
        """Labels that a model knows: with a ``prefix``, or that ``contains``; at most ``limit``, from ``offset`` on."""
        return await self._ask(
            client_requests.labels(name, {"prefix": prefix, "contains": contains, "limit": limit, "offset": offset})
        )

    async def label(self, name: str, label: str, *, limit: int | None = None) -> Answer:
        """How often a label was learned, and the features that vote for it: at most ``limit``, the heaviest first."""
        return await self._ask(client_requests.label(name, label, {"limit": limit}))

    async def configure(self, name: str, fields: Answer) -> Answer:
        """Create a model, or change fields of its configuration."""
        return await self._ask(client_requests.configure(name, fields))

    async def delete(self, name: str) -> None:
        """Delete a model and all that it learned."""
        await self._ask(client_requests.delete(name))

    async def snapshots(self, name: str) -> Answer:
        """The snapshots of a model, newest first."""
        return await self._ask(client_requests.snapshots(name))

    async def snapshot(self, name: str) -> Answer:
        """Ask for a snapshot."""
        return await self._ask(client_requests.snapshot(name))

    async def versions(self, name: str) -> Answer:
        """The versions of a model, newest first."""
        return await self._ask(client_requests.versions(name))

    async def version(self, name: str, version: str) -> Answer:
        """One version: what it was made of, and how it was judged."""
        return await self._ask(client_requests.version(name, version))

    async def compare_versions(self, name: str, ids: Sequence[str]) -> Answer:
        """Versions side by side."""
        return await self._ask(client_requests.compare_versions(name, ids))

    async def delete_version(self, name: str, version: str) -> None:
        """Delete a version that nobody needs."""
        await self._ask(client_requests.delete_version(name, version))

    async def activate(self, name: str, version: str, reason: str = "") -> Answer:
        """Let a version answer whoever names none; ``live`` is the index."""
        return await self._ask(client_requests.activate(name, version, reason))

    async def contenders(self, name: str) -> Answer:
        """The versions that contend, and how the contest stands."""
        return await self._ask(client_requests.contenders(name))

    async def enter_contender(self, name: str, version: str, reason: str = "asked for") -> Answer:
        """Let a version contend: it is scored on what is learned, and takes over once it proves better."""
        return await self._ask(client_requests.enter_contender(name, version, reason))

    async def leave_contest(self, name: str, version: str) -> None:
        """Let a version contend no more; it stays a version, and active if it is."""
        await self._ask(client_requests.leave_contest(name, version))

    async def datasets(self) -> Answer:
        """The data sets that jobs can learn from."""
        return await self._ask(client_requests.datasets())

    async def dataset(self, name: str) -> Answer:
        """One data set."""
        return await self._ask(client_requests.dataset(name))

    async def delete_dataset(self, name: str) -> None:
        """Delete a data set."""
        await self._ask(client_requests.delete_dataset(name))

    async def methods(self) -> Answer:
        """What jobs can do, with the JSON Schema of their parameters."""
        return await self._ask(client_requests.methods())

    async def submit(self, request: Answer, key: str | None = None) -> Answer:
        """Ask for a job. ``key``: an idempotency key; by default one that nobody else gives."""
        return await self._ask(client_requests.submit(request, key))

    async def jobs(self, *, state: str | None = None, model: str | None = None, limit: int | None = None) -> Answer:
        """Jobs, newest first: of a ``state``, of a ``model``, at most ``limit``."""
        return await self._ask(client_requests.jobs({"state": state, "model": model, "limit": limit}))

    async def job(self, job_id: str) -> Answer:
        """One job."""
        return await self._ask(client_requests.job(job_id))

    async def cancel(self, job_id: str) -> Answer:
        """Cancel a job; it may take seconds until it has stopped."""
        return await self._ask(client_requests.cancel(job_id))

    async def classify(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Rank one instance, or a batch."""
        return await self._ask(client_requests.classify(name, request))

    async def learn(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Learn one instance, or a batch, once, however often it has to be sent."""
        return await self._ask(client_requests.learn(name, request))

    # Files and events

    async def export(self, name: str) -> AsyncIterator[bytes]:
        """A model as one file, piece by piece."""
        async for piece in self._download(f"{client_requests.model_path(name)}/export"):
            yield piece

    async def export_version(self, name: str, version: str) -> AsyncIterator[bytes]:
        """A version as one file, piece by piece."""
        async for piece in self._download(f"{client_requests.version_path(name, version)}/export"):
            yield piece

    async def _download(self, path: str) -> AsyncIterator[bytes]:
        with told_apart(self.url, "the file"):
            async with self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise refused(response)
                async for piece in response.aiter_bytes():
                    yield piece

    async def import_(self, name: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Let a model take over what a file holds; the model. Takes as long as the replicas need to load it."""
        path = f"{client_requests.model_path(name)}/import"
        with told_apart(self.url):
            response = await self._http.put(
                path, content=pieces, headers=client_requests.MODEL_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return document(response, self.url)

    async def import_version(self, name: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Let a model take over a version from a file; the version."""
        path = f"{client_requests.model_path(name)}/versions"
        with told_apart(self.url):
            response = await self._http.post(
                path, content=pieces, headers=client_requests.VERSION_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return document(response, self.url)

    async def put_dataset(self, name: str, filename: str, pieces: AsyncIterable[bytes]) -> Answer:
        """Upload a data set, in the format that ``filename`` ends with; the data set."""
        with told_apart(self.url):
            response = await self._http.put(
                client_requests.dataset_path(name),
                params={"filename": filename},
                content=pieces,
                headers=client_requests.DATA_FILE,
                timeout=client_requests.DATASET_SECONDS,
            )
        return document(response, self.url)

    async def follow(self, job_id: str) -> AsyncIterator[Answer]:
        """A job each time that something about it has changed, the last time when it has ended."""
        attempts = Attempts(repeatable=True)
        while True:
            try:
                async for job in self._events(f"{client_requests.job_path(job_id)}/events"):
                    if "ended" not in job:
                        raise Interrupted(f"{self.url} tells of something else than a job", [], 1)
                    attempts.progress()
                    yield job
                    if job["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                await self._pause(attempts.pause_after(error) if pause is None else pause)

    async def _events(self, path: str) -> AsyncIterator[Answer]:
        """The data of server-sent events."""
        with told_apart(self.url, "the events"):
            async with self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise refused(response)
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        yield decode(line.removeprefix("data: "))

    # Streams

    def classify_stream(self, name: str, lines: Lines, *, in_flight: int = CLASSIFYING) -> AsyncIterator[Answer]:
        """One answer a line, in order, of any number of lines; see ``refusal_of`` for the ones refused.

        Parameters
        ----------
        name : str
        lines : iterable or async iterable of bytes or None
            A JSON document each, with or without a line end, like those of a file that was opened as binary.
            ValueError where one is blank, or broken over several lines: no answer would be its own.
            None: send what came before now, the next line may take long.
        in_flight : int
            Requests on their way at once.
        """
        return self._stream(f"{client_requests.model_path(name)}/classify", lines, True, checked(in_flight))

    def learn_stream(
        self, name: str, lines: Lines, *, keyed: bool = False, in_flight: int = 1
    ) -> AsyncIterator[Answer]:
        """The same for learn.

        Parameters
        ----------
        name : str
        lines : iterable or async iterable of bytes or None
        keyed : bool
            Every line carries an idempotency key, so all may be sent again.
        in_flight : int
            With more than one, requests that are on their way together may be learned in another order. With one, too,
            lines that are refused for now (429, 503) are learned behind those of their request that were not.
        """
        return self._stream(f"{client_requests.model_path(name)}/learn", lines, keyed, checked(in_flight))

    async def _stream(self, path: str, lines: Lines, repeatable: bool, in_flight: int) -> AsyncIterator[Answer]:
        sent: deque[asyncio.Task[list[Answer]]] = deque()
        requests = abounded(lines)
        try:
            while True:
                try:
                    request = await anext(requests, None)
                except Exception:  # of the source: it comes behind the answers of what was sent
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
        """An answer a line of one request, sent as often as it takes."""
        request = LinesRequest(lines, repeatable)
        while request.n_open:
            try:
                pause = request.take(await self._exchange(path, request.body(), request.n_open))
            except ClientError as error:
                pause = request.failed(error)
            if pause is not None:
                await self._pause(pause)
        return request.answers()

    async def _exchange(self, path: str, body: bytes, sent: int) -> list[Answer]:
        pieces: list[bytes] = []
        try:
            with told_apart(self.url):
                async with self._http.stream("POST", path, content=body, headers=client_requests.NDJSON) as response:
                    if response.status_code != 200:
                        await response.aread()
                        raise refused(response)
                    async for piece in response.aiter_bytes():
                        pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            raise Interrupted(str(error), whole_lines(b"".join(pieces), sent), sent) from error

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
        with told_apart(self.url):
            timeout = call.timeout(self._http.timeout)
            response = await self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, timeout=timeout
            )
        return document(response, self.url)


async def _in_order(sent: deque[asyncio.Task[list[Answer]]]) -> AsyncIterator[Answer]:
    """The answers of all requests that are on their way; one that is waited for stays in the queue."""
    while sent:
        for answer in await sent[0]:
            yield answer
        sent.popleft()
