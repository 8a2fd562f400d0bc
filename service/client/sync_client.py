"""A client for programs without an event loop. Threads may share one; its connections are kept and used again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
    refused,
    told_apart,
)
from abound.service.client.requests import Call
from abound.service.client.retries import Attempts
from abound.service.client.stream_threads import (
    SHARED,
    Connections,
    Sending,
    Streams,
    connecting,
    first,
    in_order,
    leave,
)
from abound.service.client.streams import CLASSIFYING, LinesRequest, bounded, checked, read_answers, whole_lines


class Client:
    """Talks to the service at a URL: through the proxy that the environment names, unless it is on this machine.

    Parameters
    ----------
    url : str
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII.
    timeout : float
        Seconds that a connection may stay silent; longer for what the service may take longer for: activations,
        snapshots and files.
    transport : httpx.BaseTransport or None
        In the place of the network.
    pause : callable
        Waits so many seconds before another attempt; by default no longer than a stream is wanted.

    Raises
    ------
    Refused, Unreachable, Interrupted
        Every method, once there is to be no further attempt; see ``abound.service.client.retries``. Refused, too, with
        422 and without asking, for a name that an address cannot hold (an empty one, ``.`` and ``..``), and for a
        number of a request that JSON has not: NaN and the infinities.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        headers = bearer(key)
        self.url = address(url)
        connect = connecting(self.url, headers, timeout, transport)
        self._given_pause = pause
        self._pause = pause or time.sleep
        self._answered = False
        self._http = connect(SHARED)
        self._streams = Streams(self._http, connect if transport is None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        self._streams.close()

    # Resources

    def ready(self) -> Answer:
        """What ``/readyz`` says; Refused with 503 while the service is not ready."""
        return self._ask(client_requests.ready())

    def models(self) -> Answer:
        """All models."""
        return self._ask(client_requests.models())

    def model(self, name: str) -> Answer:
        """One model with its digest."""
        return self._ask(client_requests.model(name))

    def stats(self, name: str) -> Answer:
        """The running score of a model, its sizes, and its replicas."""
        return self._ask(client_requests.stats(name))

    def labels(
        self,
        name: str,
        *,
        prefix: str | None = None,
        contains: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Answer:
        """Labels that a model knows: with a ``prefix``, or that ``contains``; at most ``limit``, from ``offset`` on."""
        return self._ask(
            client_requests.labels(name, {"prefix": prefix, "contains": contains, "limit": limit, "offset": offset})
        )

    def label(self, name: str, label: str, *, limit: int | None = None) -> Answer:
        """How often a label was learned, and the features that vote for it: at most ``limit``, the heaviest first."""
        return self._ask(client_requests.label(name, label, {"limit": limit}))

    def configure(self, name: str, fields: Answer) -> Answer:
        """Create a model, or change fields of its configuration."""
        return self._ask(client_requests.configure(name, fields))

    def delete(self, name: str) -> None:
        """Delete a model and all that it learned."""
        self._ask(client_requests.delete(name))

    def snapshots(self, name: str) -> Answer:
        """The snapshots of a model, newest first."""
        return self._ask(client_requests.snapshots(name))

    def snapshot(self, name: str) -> Answer:
        """Ask for a snapshot."""
        return self._ask(client_requests.snapshot(name))

    def versions(self, name: str) -> Answer:
        """The versions of a model, newest first."""
        return self._ask(client_requests.versions(name))

    def version(self, name: str, version: str) -> Answer:
        """One version: what it was made of, and how it was judged."""
        return self._ask(client_requests.version(name, version))

    def compare_versions(self, name: str, ids: Sequence[str]) -> Answer:
        """Versions side by side."""
        return self._ask(client_requests.compare_versions(name, ids))

    def delete_version(self, name: str, version: str) -> None:
        """Delete a version that nobody needs."""
        self._ask(client_requests.delete_version(name, version))

    def activate(self, name: str, version: str, reason: str = "") -> Answer:
        """Let a version answer whoever names none; ``live`` is the index."""
        return self._ask(client_requests.activate(name, version, reason))

    def contenders(self, name: str) -> Answer:
        """The versions that contend, and how the contest stands."""
        return self._ask(client_requests.contenders(name))

    def enter_contender(self, name: str, version: str, reason: str = "asked for") -> Answer:
        """Let a version contend: it is scored on what is learned, and takes over once it proves better."""
        return self._ask(client_requests.enter_contender(name, version, reason))

    def leave_contest(self, name: str, version: str) -> None:
        """Let a version contend no more; it stays a version, and active if it is."""
        self._ask(client_requests.leave_contest(name, version))

    def datasets(self) -> Answer:
        """The data sets that jobs can learn from."""
        return self._ask(client_requests.datasets())

    def dataset(self, name: str) -> Answer:
        """One data set."""
        return self._ask(client_requests.dataset(name))

    def delete_dataset(self, name: str) -> None:
        """Delete a data set."""
        self._ask(client_requests.delete_dataset(name))

    def methods(self) -> Answer:
        """What jobs can do, with the JSON Schema of their parameters."""
        return self._ask(client_requests.methods())

    def submit(self, request: Answer, key: str | None = None) -> Answer:
        """Ask for a job. ``key``: an idempotency key; by default one that nobody else gives."""
        return self._ask(client_requests.submit(request, key))

    def jobs(self, *, state: str | None = None, model: str | None = None, limit: int | None = None) -> Answer:
        """Jobs, newest first: of a ``state``, of a ``model``, at most ``limit``."""
        return self._ask(client_requests.jobs({"state": state, "model": model, "limit": limit}))

    def job(self, job_id: str) -> Answer:
        """One job."""
        return self._ask(client_requests.job(job_id))

    def cancel(self, job_id: str) -> Answer:
        """Cancel a job; it may take seconds until it has stopped."""
        return self._ask(client_requests.cancel(job_id))

    def classify(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Rank one instance, or a batch."""
        return self._ask(client_requests.classify(name, request))

    def learn(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Learn one instance, or a batch, once, however often it has to be sent."""
        return self._ask(client_requests.learn(name, request))

    # Files and events

    def export(self, name: str) -> Iterator[bytes]:
        """A model as one file, piece by piece."""
        return self._download(f"{client_requests.model_path(name)}/export")

    def export_version(self, name: str, version: str) -> Iterator[bytes]:
        """A version as one file, piece by piece."""
        return self._download(f"{client_requests.version_path(name, version)}/export")

    def _download(self, path: str) -> Iterator[bytes]:
        with told_apart(self.url, "the file"), self._http.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise refused(response)
            yield from response.iter_bytes()

    def import_(self, name: str, pieces: Iterable[bytes]) -> Answer:
        """Let a model take over what a file holds; the model. Takes as long as the replicas need to load it."""
        path = f"{client_requests.model_path(name)}/import"
        with told_apart(self.url):
            response = self._http.put(
                path, content=pieces, headers=client_requests.MODEL_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return document(response, self.url)

    def import_version(self, name: str, pieces: Iterable[bytes]) -> Answer:
        """Let a model take over a version from a file; the version."""
        path = f"{client_requests.model_path(name)}/versions"
        with told_apart(self.url):
            response = self._http.post(
                path, content=pieces, headers=client_requests.VERSION_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return document(response, self.url)

    def put_dataset(self, name: str, filename: str, pieces: Iterable[bytes]) -> Answer:
        """Upload a data set, in the format that ``filename`` ends with; the data set."""
        with told_apart(self.url):
            response = self._http.put(
                client_requests.dataset_path(name),
                params={"filename": filename},
                content=pieces,
                headers=client_requests.DATA_FILE,
                timeout=client_requests.DATASET_SECONDS,
            )
        return document(response, self.url)

    def follow(self, job_id: str) -> Iterator[Answer]:
        """A job each time that something about it has changed, the last time when it has ended."""
        attempts = Attempts(repeatable=True)
        while True:
            try:
                for job in self._events(f"{client_requests.job_path(job_id)}/events"):
                    if "ended" not in job:
                        raise Interrupted(f"{self.url} tells of something else than a job", [], 1)
                    attempts.progress()
                    yield job
                    if job["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                self._pause(attempts.pause_after(error) if pause is None else pause)

    def _events(self, path: str) -> Iterator[Answer]:
        """The data of server-sent events."""
        with told_apart(self.url, "the events"), self._http.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise refused(response)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield decode(line.removeprefix("data: "))

    # Streams

    def classify_stream(
        self, name: str, lines: Iterable[bytes | None], *, in_flight: int = CLASSIFYING
    ) -> Iterator[Answer]:
        """One answer a line, in order, of any number of lines; see ``refusal_of`` for the ones refused.

        Left before its end, it sends nothing more and hangs up on what is on its way, which the service may have taken.
        What is on its way by a transport that was given ends by itself.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
            A JSON document each, with or without a line end, like those of a file that was opened as binary.
            ValueError where one is blank, or broken over several lines: no answer would be its own.
            None: send what came before now, the next line may take long.
        in_flight : int
            Requests on their way at once.
        """
        return self._stream(f"{client_requests.model_path(name)}/classify", lines, True, checked(in_flight))

    def learn_stream(
        self, name: str, lines: Iterable[bytes | None], *, keyed: bool = False, in_flight: int = 1
    ) -> Iterator[Answer]:
        """The same for learn.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
        keyed : bool
            Every line carries an idempotency key, so all may be sent again.
        in_flight : int
            With more than one, requests that are on their way together may be learned in another order. With one, too,
            lines that are refused for now (429, 503) are learned behind those of their request that were not.
        """
        return self._stream(f"{client_requests.model_path(name)}/learn", lines, keyed, checked(in_flight))

    def _stream(self, path: str, lines: Iterable[bytes | None], repeatable: bool, in_flight: int) -> Iterator[Answer]:
        requests = bounded(lines)
        if in_flight == 1:
            connections = Connections(self._http)
            for one in requests:
                yield from self._lines(path, one, repeatable, connections)
            return
        sent: deque[Sending] = deque()
        with self._streams.connections() as connections:
            try:
                while True:
                    try:
                        request = next(requests, None)
                    except Exception:  # of the source: it comes behind the answers of what was sent
                        yield from in_order(sent)
                        raise
                    if request is None:
                        break
                    sent.append(Sending(partial(self._lines, path, request, repeatable, connections)))
                    if len(sent) == in_flight:
                        yield from first(sent)
                yield from in_order(sent)
            except BaseException:
                connections.end()
                leave(sent)
                raise

    def _lines(self, path: str, lines: list[bytes], repeatable: bool, connections: Connections) -> list[Answer]:
        """An answer a line of one request, sent as often as it takes; fewer when the stream has ended meanwhile."""
        request = LinesRequest(lines, repeatable)
        while request.n_open and not connections.ended.is_set():
            try:
                pause = request.take(self._exchange(connections, path, request.body(), request.n_open))
            except ClientError as error:
                pause = request.failed(error)
            if pause is not None:
                (self._given_pause or connections.ended.wait)(pause)
        return request.answers()

    def _exchange(self, connections: Connections, path: str, body: bytes, sent: int) -> list[Answer]:
        pieces: list[bytes] = []
        try:
            with told_apart(self.url):
                with connections.send(path, body) as response:
                    if response.status_code != 200:
                        response.read()
                        raise refused(response)
                    for piece in response.iter_bytes():
                        pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            raise Interrupted(str(error), whole_lines(b"".join(pieces), sent), sent) from error

    # Single requests

    def _ask(self, call: Call) -> Answer:
        attempts = Attempts(call.repeatable, patient=self._answered)
        while True:
            try:
                answer = self._once(call)
            except ClientError as error:
                self._answered |= isinstance(error, Refused)
                if call.once:
                    raise
                pause = attempts.pause_after(error)
            else:
                self._answered = True
                return answer
            self._pause(pause)

    def _once(self, call: Call) -> Answer:
        with told_apart(self.url):
            timeout = call.timeout(self._http.timeout)
            response = self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, timeout=timeout
            )
        return document(response, self.url)
