"""A client of the service: one method a resource, and NDJSON streams of any length.

    ClientError
    ├── Refused        the service answered with a problem document
    ├── Unreachable    no answer, and nothing of the request can have been taken
    └── Interrupted    the answer broke off: what was sent after the last answered line may or may not have been taken

What is tried again, a bounded number of times: requests that were refused with 429 or 503 or never reached the service
(nothing of them was taken), lines of a stream that were refused so, and interrupted requests that only read or whose
lines carry idempotency keys. An interrupted learn without keys is never sent twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import httpx
import msgspec

from core.errors import AboundError

STREAM_LINES = 1000
"""Lines of one NDJSON request."""

STREAM_BYTES = 4 * 2**20
"""Bytes after which an NDJSON request takes no further line; a line may itself be large."""

ATTEMPTS = 6
"""How often a request is sent before it counts as failed."""

MAX_PAUSE = 10.0
"""Longest pause before another attempt, in seconds."""

_NDJSON = {"Content-Type": "application/x-ndjson"}
_JSON = {"Content-Type": "application/json"}
_AGAIN = (429, 503)

Answer = dict[str, Any]

_decode = msgspec.json.Decoder(Answer).decode


IMPORT_SECONDS = 900.0


class ClientError(AboundError):
    """A request did not lead to what was asked for."""


class Refused(ClientError):
    """The service answered with a problem document.

    Parameters
    ----------
    status : int
        The HTTP status.
    problem : dict
        The document: ``title``, ``detail``, ``field`` and what else it carries.
    """

    def __init__(self, status: int, problem: Answer) -> None:
        self.status = status
        self.problem = problem
        said = str(problem.get("detail") or problem.get("title") or "no reason given")
        field = str(problem.get("field") or "")
        where = f"{field}: " if field and not said.startswith(field) else ""
        super().__init__(f"{where}{said} ({status})")


class Unreachable(ClientError):
    """No service answers at the URL."""


class Interrupted(ClientError):
    """An answer broke off. ``answers`` are those that arrived whole, of the ``sent`` lines of the request."""

    def __init__(self, detail: str, answers: list[Answer], sent: int) -> None:
        super().__init__(detail)
        self.answers = answers
        self.sent = sent


def refusal_of(answer: Answer) -> Refused | None:
    """The problem that a line of an NDJSON answer is, or None for a proper answer."""
    status = answer.get("status")
    return Refused(status, answer) if isinstance(status, int) and "title" in answer else None


class Client:
    """Talks to the service at a URL.

    Parameters
    ----------
    url : str
    key : str or None
        Sent as bearer token.
    timeout : float
        Seconds that a connection may stay silent.
    transport : httpx.BaseTransport or None
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
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = url.rstrip("/")
        self._pause = pause
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)
        except httpx.InvalidURL as error:
            raise Unreachable(f"{url} is not a URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # Resources

    def ready(self) -> Answer:
        """What ``/readyz`` says; Refused with 503 while the service is not ready."""
        return self._once("GET", "/readyz")

    def models(self) -> Answer:
        """All models."""
        return self._repeatable("GET", "/models")

    def model(self, name: str) -> Answer:
        """One model with its digest."""
        return self._repeatable("GET", _model(name))

    def stats(self, name: str) -> Answer:
        """The running score of a model, its sizes, and its replicas."""
        return self._repeatable("GET", f"{_model(name)}/stats")

    def configure(self, name: str, fields: Answer) -> Answer:
        """Create a model, or change fields of its configuration."""
        return self._repeatable("PUT", _model(name), fields)

    def delete(self, name: str) -> None:
        """Delete a model and all that it learned."""
        self._once("DELETE", _model(name))

    def export(self, name: str) -> Iterator[bytes]:
        """A model as one file, piece by piece. Refused, Unreachable; Interrupted when it breaks off."""
        try:
            with self._http.stream("GET", f"{_model(name)}/export") as response:
                if response.status_code != 200:
                    response.read()
                    raise _refused(response)
                yield from response.iter_bytes()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise Interrupted(f"{self.url}: the file broke off: {_said(error)}", [], 1) from error

    def import_(self, name: str, pieces: Iterable[bytes]) -> Answer:
        """Let a model take over what a file holds; the model. Takes as long as the replicas need to load it."""
        try:
            response = self._http.put(
                f"{_model(name)}/import",
                content=pieces,
                headers={"content-type": "application/vnd.abound.model"},
                timeout=IMPORT_SECONDS,
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise Interrupted(f"{self.url}: the answer broke off: {_said(error)}", [], 1) from error
        if not response.is_success:
            raise _refused(response)
        return _decode(response.content)

    def snapshots(self, name: str) -> Answer:
        """The snapshots of a model, newest first."""
        return self._repeatable("GET", f"{_model(name)}/snapshots")

    def snapshot(self, name: str) -> Answer:
        """Ask for a snapshot."""
        return self._once("POST", f"{_model(name)}/snapshots")

    def methods(self) -> Answer:
        """What jobs can do, with the JSON Schema of their parameters."""
        return self._repeatable("GET", "/methods")

    def submit(self, request: Answer) -> Answer:
        """Ask for a job."""
        return self._once("POST", "/jobs", request)

    def jobs(self, **query: str | int | None) -> Answer:
        """Jobs, newest first: of a ``state``, of a ``model``, at most ``limit``."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return self._repeatable("GET", f"/jobs?{given}" if given else "/jobs")

    def job(self, job_id: str) -> Answer:
        """One job."""
        return self._repeatable("GET", _job(job_id))

    def cancel(self, job_id: str) -> Answer:
        """Cancel a job; it may take seconds until it has stopped."""
        return self._repeatable("DELETE", _job(job_id))

    def follow(self, job_id: str) -> Iterator[Answer]:
        """A job each time that something about it has changed, the last time when it has ended.

        A connection that breaks off is made again; Refused, Unreachable or Interrupted when that fails several times
        in a row.
        """
        failures = 0
        while True:
            try:
                for job in self._events(f"{_job(job_id)}/events"):
                    failures = 0
                    yield job
                    if job["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except (Unreachable, Interrupted, Refused) as error:
                failures += 1
                if failures == ATTEMPTS or (isinstance(error, Refused) and error.status not in _AGAIN):
                    raise
                self._pause(_backoff(failures))

    def _events(self, path: str) -> Iterator[Answer]:
        """The data of server-sent events."""
        try:
            with self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    response.read()
                    raise _refused(response)
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield _decode(line.removeprefix("data: "))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except (httpx.TransportError, msgspec.DecodeError) as error:
            raise Interrupted(f"{self.url}: the events broke off: {_said(error)}", [], 1) from error

    def classify(self, name: str, request: Answer) -> Answer:
        """Rank one instance, or a batch."""
        return self._repeatable("POST", f"{_model(name)}/classify", request)

    def learn(self, name: str, request: Answer) -> Answer:
        """Learn one instance, or a batch."""
        return self._once("POST", f"{_model(name)}/learn", request)

    # Streams

    def classify_stream(self, name: str, lines: Iterable[bytes]) -> Iterator[Answer]:
        """One answer a line, in order, of any number of lines; see :func:`refusal_of` for the ones refused.

        Raises
        ------
        Refused, Unreachable, Interrupted
            A whole request failed, also when tried again.
        """
        return self._stream(f"{_model(name)}/classify", lines, repeatable=True)

    def learn_stream(self, name: str, lines: Iterable[bytes], *, keyed: bool = False) -> Iterator[Answer]:
        """The same for learn. ``keyed``: every line carries an idempotency key, so all may be sent again."""
        return self._stream(f"{_model(name)}/learn", lines, repeatable=keyed)

    def _stream(self, path: str, lines: Iterable[bytes], *, repeatable: bool) -> Iterator[Answer]:
        for request in bounded(lines):
            answers = self._lines(path, request, repeatable)
            for _ in range(ATTEMPTS - 1):
                again = [i for i, answer in enumerate(answers) if _may_be_sent_again(answer)]
                if not again:
                    break
                self._pause(max(_pause_of(answers[i]) for i in again))
                for i, answer in zip(again, self._lines(path, [request[i] for i in again], repeatable), strict=True):
                    answers[i] = answer
            yield from answers

    def _lines(self, path: str, lines: list[bytes], repeatable: bool) -> list[Answer]:
        """One NDJSON request, tried again where nothing of it can have been taken or it is repeatable."""
        body = b"\n".join(lines) + b"\n"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._exchange_lines(path, body, len(lines))
            except Unreachable:
                if attempt == ATTEMPTS:
                    raise
                self._pause(_backoff(attempt))
            except Interrupted:
                if not repeatable or attempt == ATTEMPTS:
                    raise
                self._pause(_backoff(attempt))
            except Refused as error:
                if error.status not in _AGAIN or attempt == ATTEMPTS:
                    raise
                self._pause(_pause_of(error.problem))
        raise AssertionError("the last attempt returns or raises")

    def _exchange_lines(self, path: str, body: bytes, sent: int) -> list[Answer]:
        answers: list[Answer] = []
        try:
            with self._http.stream("POST", path, content=body, headers=_NDJSON) as response:
                if response.status_code != 200:
                    response.read()
                    raise _refused(response)
                for line in response.iter_lines():
                    answers.append(_decode(line))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except (httpx.TransportError, msgspec.DecodeError) as error:
            raise Interrupted(f"{self.url}: the answer broke off: {_said(error)}", answers, sent) from error
        if answers and len(answers) < sent and refusal_of(answers[-1]) is not None:
            # The service refused the rest of the request as a whole: what it did not answer, it did not take.
            answers += [answers[-1]] * (sent - len(answers))
        if len(answers) != sent:
            raise Interrupted(f"{self.url}: the answer broke off", answers[:sent], sent)
        return answers

    # Single requests

    def _repeatable(self, method: str, path: str, body: object = None) -> Answer:
        """A request that may be sent twice."""
        for attempt in range(1, ATTEMPTS):
            try:
                return self._once(method, path, body)
            except Interrupted:
                self._pause(_backoff(attempt))
        return self._once(method, path, body)

    def _once(self, method: str, path: str, body: object = None) -> Answer:
        content = b"" if body is None else msgspec.json.encode(body)
        try:
            response = self._http.request(method, path, content=content, headers=_JSON if content else {})
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise Interrupted(f"{self.url}: the answer broke off: {_said(error)}", [], 1) from error
        if not response.is_success:
            raise _refused(response)
        try:
            return _decode(response.content) if response.content else {}
        except msgspec.DecodeError as error:
            raise Refused(response.status_code, {"detail": f"{self.url} does not answer like this service"}) from error

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"no service answers at {self.url} ({_said(error)}); start one with: abound serve")


def bounded(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut a stream of lines into requests: ``STREAM_LINES`` lines, fewer when they reach ``STREAM_BYTES``.

    No line is read ahead of the request that it belongs to.
    """
    request: list[bytes] = []
    size = 0
    for line in lines:
        request.append(line)
        size += len(line) + 1
        if len(request) == STREAM_LINES or size >= STREAM_BYTES:
            yield request
            request, size = [], 0
    if request:
        yield request


def _model(name: str) -> str:
    return f"/models/{quote(name, safe='')}"


def _job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _refused(response: httpx.Response) -> Refused:
    try:
        problem = _decode(response.content)
    except msgspec.DecodeError:
        problem = {"detail": f"{response.request.url} answers {response.status_code} {response.reason_phrase}"}
    pause = response.headers.get("Retry-After", "")
    if pause.isdigit():
        problem.setdefault("retry_after", int(pause))
    return Refused(response.status_code, problem)


def _may_be_sent_again(answer: Answer) -> bool:
    refusal = refusal_of(answer)
    return refusal is not None and refusal.status in _AGAIN


def _pause_of(problem: Answer) -> float:
    asked = problem.get("retry_after")
    return min(float(asked), MAX_PAUSE) if isinstance(asked, (int, float)) and asked >= 0 else 1.0


def _backoff(attempt: int) -> float:
    return float(min(0.25 * 2**attempt, MAX_PAUSE))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
