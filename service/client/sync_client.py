"""The synchronous client. Threads may share an instance; it keeps its connections open and reuses them."""

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
    bearer_header,
    decode,
    decode_document,
    normalize_url,
    refusal_of_response,
    transport_errors,
)
from abound.service.client.requests import Call
from abound.service.client.retries import Attempts
from abound.service.client.stream_threads import (
    SHARED_LIMITS,
    RequestThread,
    StreamConnectionPool,
    StreamConnections,
    answers_in_order,
    client_factory,
    first_answers,
    join_abandoned,
)
from abound.service.client.streams import (
    CLASSIFY_IN_FLIGHT,
    LinesRequest,
    bounded,
    check_in_flight,
    complete_answers,
    read_answers,
)


class Client:
    """Client of the service at a URL. Uses the proxy that the environment names, except for a service on this machine.

    Parameters
    ----------
    url : str
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII.
    timeout : float
        Seconds that a connection may stay silent. Activations, snapshots and files have longer timeouts of their own.
    transport : httpx.BaseTransport or None
        Used instead of the network.
    pause : callable
        Waits the given seconds before another attempt. The default also returns when the caller abandons the stream.

    Raises
    ------
    Refused, Unreachable, Interrupted
        By every method, after the last attempt; see ``abound.service.client.retries``. Refused with status 422 is also
        raised without a request: for names that a path cannot hold (empty, ``.`` or ``..``), and for numbers that
        JSON cannot represent (NaN and the infinities).
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
        headers = bearer_header(key)
        self.url = normalize_url(url)
        connect = client_factory(self.url, headers, timeout, transport)
        self._given_pause = pause
        self._pause = pause or time.sleep
        self._answered = False
        self._http = connect(SHARED_LIMITS)
        self._streams = StreamConnectionPool(self._http, connect if transport is None else None)

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
        """Return the answer of ``/readyz``. Raises Refused with status 503 while the service is not ready."""
        return self._ask(client_requests.ready())

    def models(self) -> Answer:
        """Return all models."""
        return self._ask(client_requests.models())

    def model(self, name: str) -> Answer:
        """Return one model with its digest."""
        return self._ask(client_requests.model(name))

    def stats(self, name: str) -> Answer:
        """Return the running score of a model, its sizes and its replicas."""
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
        """Return labels that a model knows, at most ``limit`` from ``offset`` on.

        Filter them by ``prefix``, or by a substring with ``contains``.
        """
        return self._ask(
            client_requests.labels(name, {"prefix": prefix, "contains": contains, "limit": limit, "offset": offset})
        )

    def label(self, name: str, label: str, *, limit: int | None = None) -> Answer:
        """Return how often a label was learned, and at most ``limit`` features that vote for it, heaviest first."""
        return self._ask(client_requests.label(name, label, {"limit": limit}))

    def configure(self, name: str, fields: Answer) -> Answer:
        """Create a model or change fields of its configuration."""
        return self._ask(client_requests.configure(name, fields))

    def delete(self, name: str) -> None:
        """Delete a model and everything it learned."""
        self._ask(client_requests.delete(name))

    def snapshots(self, name: str) -> Answer:
        """Return the snapshots of a model, newest first."""
        return self._ask(client_requests.snapshots(name))

    def snapshot(self, name: str) -> Answer:
        """Request a snapshot."""
        return self._ask(client_requests.snapshot(name))

    def versions(self, name: str) -> Answer:
        """Return the versions of a model, newest first."""
        return self._ask(client_requests.versions(name))

    def version(self, name: str, version: str) -> Answer:
        """Return one version: the data it was fitted on and its evaluation."""
        return self._ask(client_requests.version(name, version))

    def compare_versions(self, name: str, ids: Sequence[str]) -> Answer:
        """Return a comparison of versions."""
        return self._ask(client_requests.compare_versions(name, ids))

    def delete_version(self, name: str, version: str) -> None:
        """Delete a version that is not in use."""
        self._ask(client_requests.delete_version(name, version))

    def activate(self, name: str, version: str, reason: str = "") -> Answer:
        """Make a version answer the requests that name none. ``live`` stands for the index."""
        return self._ask(client_requests.activate(name, version, reason))

    def contenders(self, name: str) -> Answer:
        """Return the challengers and the standings of the contest."""
        return self._ask(client_requests.contenders(name))

    def enter_contender(self, name: str, version: str, reason: str = "asked for") -> Answer:
        """Enter a version as a challenger: it is scored on learned instances, and activated once it proves better."""
        return self._ask(client_requests.enter_contender(name, version, reason))

    def leave_contest(self, name: str, version: str) -> None:
        """Withdraw a version from the contest. The version is kept, and stays active if it is."""
        self._ask(client_requests.leave_contest(name, version))

    def datasets(self) -> Answer:
        """Return the data sets that jobs can learn from."""
        return self._ask(client_requests.datasets())

    def dataset(self, name: str) -> Answer:
        """Return one data set."""
        return self._ask(client_requests.dataset(name))

    def delete_dataset(self, name: str) -> None:
        """Delete a data set."""
        self._ask(client_requests.delete_dataset(name))

    def methods(self) -> Answer:
        """Return the methods of jobs, with the JSON Schema of their parameters."""
        return self._ask(client_requests.methods())

    def submit(self, request: Answer, key: str | None = None) -> Answer:
        """Submit a job. ``key`` is an idempotency key, by default a random one."""
        return self._ask(client_requests.submit(request, key))

    def jobs(self, *, state: str | None = None, model: str | None = None, limit: int | None = None) -> Answer:
        """Return at most ``limit`` jobs, newest first. Filter them by ``state`` and ``model``."""
        return self._ask(client_requests.jobs({"state": state, "model": model, "limit": limit}))

    def job(self, job_id: str) -> Answer:
        """Return one job."""
        return self._ask(client_requests.job(job_id))

    def cancel(self, job_id: str) -> Answer:
        """Cancel a job, which may take seconds to stop."""
        return self._ask(client_requests.cancel(job_id))

    def classify(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Classify one instance or a batch."""
        return self._ask(client_requests.classify(name, request))

    def learn(self, name: str, request: Mapping[str, Any]) -> Answer:
        """Learn one instance or a batch. Retries do not learn it twice."""
        return self._ask(client_requests.learn(name, request))

    # Files and events

    def export(self, name: str) -> Iterator[bytes]:
        """Yield a model as one file, piece by piece."""
        return self._download(f"{client_requests.model_path(name)}/export")

    def export_version(self, name: str, version: str) -> Iterator[bytes]:
        """Yield a version as one file, piece by piece."""
        return self._download(f"{client_requests.version_path(name, version)}/export")

    def _download(self, path: str) -> Iterator[bytes]:
        with transport_errors(self.url, "the file"), self._http.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise refusal_of_response(response)
            yield from response.iter_bytes()

    def import_(self, name: str, pieces: Iterable[bytes]) -> Answer:
        """Load an exported file into a model and return the model. Waits until the replicas have loaded it."""
        path = f"{client_requests.model_path(name)}/import"
        with transport_errors(self.url):
            response = self._http.put(
                path, content=pieces, headers=client_requests.MODEL_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return decode_document(response, self.url)

    def import_version(self, name: str, pieces: Iterable[bytes]) -> Answer:
        """Add an exported version to a model and return the version."""
        path = f"{client_requests.model_path(name)}/versions"
        with transport_errors(self.url):
            response = self._http.post(
                path, content=pieces, headers=client_requests.VERSION_FILE, timeout=client_requests.IMPORT_SECONDS
            )
        return decode_document(response, self.url)

    def put_dataset(self, name: str, filename: str, pieces: Iterable[bytes]) -> Answer:
        """Upload a data set and return it. The suffix of ``filename`` names its format."""
        with transport_errors(self.url):
            response = self._http.put(
                client_requests.dataset_path(name),
                params={"filename": filename},
                content=pieces,
                headers=client_requests.DATA_FILE,
                timeout=client_requests.DATASET_SECONDS,
            )
        return decode_document(response, self.url)

    def follow(self, job_id: str) -> Iterator[Answer]:
        """Yield a job each time it changes, the last time when it has ended."""
        attempts = Attempts(repeatable=True)
        while True:
            try:
                for job in self._events(f"{client_requests.job_path(job_id)}/events"):
                    if "ended" not in job:
                        raise Interrupted(f"{self.url} sent an event that is not a job", [], 1)
                    attempts.reset()
                    yield job
                    if job["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                self._pause(attempts.pause_after(error) if pause is None else pause)

    def _events(self, path: str) -> Iterator[Answer]:
        """Yield the data of server-sent events."""
        with transport_errors(self.url, "the events"), self._http.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise refusal_of_response(response)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield decode(line.removeprefix("data: "))

    # Streams

    def classify_stream(
        self, name: str, lines: Iterable[bytes | None], *, in_flight: int = CLASSIFY_IN_FLIGHT
    ) -> Iterator[Answer]:
        """Classify any number of lines and yield an answer for each, in order. ``refusal_of`` detects refused lines.

        If the caller abandons the iterator, nothing more is sent and pending requests are disconnected, though the
        service may have processed them. Requests on a transport given to the client run to their end.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
            A JSON document each, with or without a line break, like the lines of a file opened in binary mode.
            A blank line, or a document that spans lines, raises ValueError: answers could not be matched to lines.
            None sends the pending lines at once, for a source whose next line may take long.
        in_flight : int
            Number of concurrent requests.
        """
        return self._stream(f"{client_requests.model_path(name)}/classify", lines, True, check_in_flight(in_flight))

    def learn_stream(
        self, name: str, lines: Iterable[bytes | None], *, keyed: bool = False, in_flight: int = 1
    ) -> Iterator[Answer]:
        """Learn any number of lines and yield an answer for each, in order. Lines are as in ``classify_stream``.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
        keyed : bool
            Every line carries an idempotency key, so that all of them may be sent again.
        in_flight : int
            Number of concurrent requests. With more than one, requests may be learned in another order. Even with one,
            lines that are refused for now (429, 503) are learned after the accepted lines of their request.
        """
        return self._stream(f"{client_requests.model_path(name)}/learn", lines, keyed, check_in_flight(in_flight))

    def _stream(self, path: str, lines: Iterable[bytes | None], repeatable: bool, in_flight: int) -> Iterator[Answer]:
        requests = bounded(lines)
        if in_flight == 1:
            connections = StreamConnections(self._http)
            for one in requests:
                yield from self._lines(path, one, repeatable, connections)
            return
        sent: deque[RequestThread] = deque()
        with self._streams.connections() as connections:
            try:
                while True:
                    try:
                        request = next(requests, None)
                    except Exception:  # raised by the source: it follows the answers to the lines sent
                        yield from answers_in_order(sent)
                        raise
                    if request is None:
                        break
                    sent.append(RequestThread(partial(self._lines, path, request, repeatable, connections)))
                    if len(sent) == in_flight:
                        yield from first_answers(sent)
                yield from answers_in_order(sent)
            except BaseException:
                connections.abort()
                join_abandoned(sent)
                raise

    def _lines(self, path: str, lines: list[bytes], repeatable: bool, connections: StreamConnections) -> list[Answer]:
        """Send one request until each line has an answer. Returns fewer answers if the stream was abandoned."""
        request = LinesRequest(lines, repeatable)
        while request.n_open and not connections.aborted.is_set():
            try:
                pause = request.record_answers(self._exchange(connections, path, request.body(), request.n_open))
            except ClientError as error:
                pause = request.record_failure(error)
            if pause is not None:
                (self._given_pause or connections.aborted.wait)(pause)
        return request.answers()

    def _exchange(self, connections: StreamConnections, path: str, body: bytes, sent: int) -> list[Answer]:
        pieces: list[bytes] = []
        try:
            with transport_errors(self.url):
                with connections.send(path, body) as response:
                    if response.status_code != 200:
                        response.read()
                        raise refusal_of_response(response)
                    for piece in response.iter_bytes():
                        pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            raise Interrupted(str(error), complete_answers(b"".join(pieces), sent), sent) from error

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
        with transport_errors(self.url):
            timeout = call.timeout(self._http.timeout)
            response = self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, timeout=timeout
            )
        return decode_document(response, self.url)
