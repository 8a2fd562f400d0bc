"""The synchronous client, and one model accessed through it.

Threads may share a client; it keeps its connections open and reuses them.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from abound.service.api.schemas.learn_classify import ClassifyAnswer, LearnAnswer
from abound.service.client.errors import (
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
from abound.service.client.instances import (
    ClassifyOptions,
    Features,
    Fields,
    InputInstance,
    InputText,
    Labelled,
    LearnKwargs,
    as_instance,
    classify_encoder,
    classify_request,
    learn_encoder,
    learn_request,
    to_answer,
)
from abound.service.client.local_service import MEMORY, own_service
from abound.service.client.requests import FILE_PIECE_BYTES, NDJSON, Call, job_path, model_path, pass_trace_on
from abound.service.client.resources import Resources
from abound.service.client.retries import Attempts
from abound.service.client.streams import LinesRequest, bounded, complete_answers, read_answers


class Client(Resources[Answer, None, Iterable[bytes], Iterator[bytes]]):
    """Client of the service at a URL. Uses the proxy that the environment names, except for a service on this machine.

    Parameters
    ----------
    url : str or None
        Default: ``ABOUND_URL``, else http://127.0.0.1:8000. ``:memory:`` starts a temporary service for tests, as a
        child process with a worker and an empty store, and stops it in ``close``; needs the service to be installed.
    key : str or None
        Sent as bearer token; ValueError where it is not printable ASCII. Default: ``ABOUND_KEY``; empty: none.
    timeout : float
        Seconds that a connection may stay silent. Activations, snapshots and files have longer timeouts of their own.
    transport : httpx.BaseTransport or None
        Used instead of the network.
    pause : callable
        Waits the given seconds before another attempt.

    Raises
    ------
    Refused, Unreachable, Interrupted
        By every method, after the last attempt; see ``abound.service.client.retries``. Refused with status 422 is also
        raised without a request: for names that a path cannot hold (empty, ``.`` or ``..``), and for numbers that
        JSON cannot represent (NaN and the infinities).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        stack = ExitStack()
        self._close = weakref.finalize(self, stack.close)  # also for a client that is never closed
        if url == MEMORY:
            url, key = stack.enter_context(own_service(worker=True)), ""
        headers = bearer_header(key if key is not None else os.environ.get("ABOUND_KEY"))
        self.url = normalize_url(os.environ.get("ABOUND_URL") or DEFAULT_URL if url is None else url)
        self._pause = pause
        self._answered = False
        with environment_errors(self.url):
            if transport is None and is_on_this_machine(self.url):
                transport = httpx.HTTPTransport()  # an explicit transport ignores proxies
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=timeout,
                transport=transport,
                cookies=no_cookies(),
                event_hooks={"request": [pass_trace_on]},
            )
        stack.callback(self._http.close)

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and stop the service of a client of ``:memory:``."""
        self._close()

    def model(self, name: str = "default") -> Model:
        """Return access to one model with typed instances and answers. Sends no request."""
        return Model(self, name)

    def follow(self, job: str | Mapping[str, Any]) -> Iterator[Answer]:
        """Yield a job, given by its id or its document, each time it changes, the last time when it has ended."""
        attempts, path = Attempts(repeatable=True), job_path(job)
        while True:
            try:
                for state in self._events(f"{path}/events"):
                    if "ended" not in state:
                        raise Interrupted(f"{self.url} sent an event that is not a job", [], 1)
                    attempts.reset()
                    yield state
                    if state["ended"] is not None:
                        return
                raise Interrupted(f"{self.url}: the events broke off", [], 1)
            except ClientError as error:
                pause = attempts.start_pause(error)
                self._pause(attempts.pause_after(error) if pause is None else pause)

    def wait(self, job: str | Mapping[str, Any]) -> Answer:
        """Return a job, given by its id or its document, once it has ended."""
        return deque(self.follow(job), maxlen=1).pop()

    # Streams

    def classify_stream(self, name: str, lines: Iterable[bytes | None]) -> Iterator[Answer]:
        """Classify any number of lines and yield an answer for each, in order. ``refusal_of`` detects refused lines.

        Requests are sent one after the other; ``AsyncClient`` sends several at a time.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
            A JSON document each, with or without a line break, like the lines of a file opened in binary mode.
            A blank line, or a document that spans lines, raises ValueError: answers could not be matched to lines.
            None sends the pending lines at once, for a source whose next line may take long.
        """
        return self._stream(f"{model_path(name)}/classify", lines, repeatable=True)

    def learn_stream(self, name: str, lines: Iterable[bytes | None], *, keyed: bool = False) -> Iterator[Answer]:
        """Learn any number of lines and yield an answer for each, in order. Lines are as in ``classify_stream``.

        Lines are learned in their order, except for lines that are refused for now (429, 503): they are learned after
        the accepted lines of their request.

        Parameters
        ----------
        name : str
        lines : iterable of bytes or None
        keyed : bool
            Every line carries an idempotency key, so that all of them may be sent again.
        """
        return self._stream(f"{model_path(name)}/learn", lines, repeatable=keyed)

    def _stream(self, path: str, lines: Iterable[bytes | None], repeatable: bool) -> Iterator[Answer]:
        before = 0
        for one in bounded(lines):
            yield from self._lines(path, one, repeatable, before)
            before += len(one)

    def _lines(self, path: str, lines: list[bytes], repeatable: bool, before: int) -> list[Answer]:
        """Send one request until each line has an answer."""
        request = LinesRequest(lines, repeatable, before)
        while request.n_open:
            try:
                pause = request.record_answers(self._exchange(path, request.body(), request.n_open))
            except ClientError as error:
                pause = request.record_failure(error)
            if pause is not None:
                self._pause(pause)
        return request.answers()

    def _exchange(self, path: str, body: bytes, sent: int) -> list[Answer]:
        pieces: list[bytes] = []
        try:
            with self._open("POST", path, content=body, headers=NDJSON) as response:
                for piece in response.iter_bytes():
                    pieces.append(piece)
                return read_answers(b"".join(pieces), sent, self.url)
        except Interrupted as error:
            answers = complete_answers(b"".join(pieces), sent)
            if len(answers) == sent:
                return answers
            raise Interrupted(str(error), answers, sent) from error

    # Requests

    @contextmanager
    def _open(self, method: str, path: str, what: str = "the answer", **content: Any) -> Iterator[httpx.Response]:
        """Send a request and provide its response, whose body is read by the caller."""
        with transport_errors(self.url, what), self._http.stream(method, path, **content) as response:
            if response.status_code != 200:
                response.read()
                raise refusal_of_response(response)
            yield response

    def _download(self, path: str) -> Iterator[bytes]:
        with self._open("GET", path, "the file") as response:
            yield from response.iter_bytes()

    def _read(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(FILE_PIECE_BYTES):
                yield piece

    def _events(self, path: str) -> Iterator[Answer]:
        """Yield the data of server-sent events."""
        with self._open("GET", path, "the events") as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield decode(line.removeprefix("data: "))

    def _delete(self, path: str) -> None:
        self._ask(Call("DELETE", path, repeatable=False))

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


class Model:
    """One model, accessed through a ``Client``; ``client.model(name)`` returns it.

    Parameters
    ----------
    client : Client
    name : str
    """

    def __init__(self, client: Client, name: str = "default") -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<Model {self.name!r} of {self.client.url}>"

    def create(self, **config: Any) -> Answer:
        """Create the model with these fields of its configuration, such as ``update="sls"``, and return it.

        Raises ValueError if the model exists.
        """
        if any(one["name"] == self.name for one in self.client.models()["models"]):
            raise model_exists(self.name)
        return self.client.configure(self.name, config)

    def classify(
        self,
        instance: str | InputInstance | None = None,
        *,
        text: InputText | None = None,
        features: Features | None = None,
        vector: Any = None,
        **options: Unpack[ClassifyOptions],
    ) -> ClassifyAnswer:
        """Return the labels of one instance, best first.

        The instance is a text or an ``InputInstance``; or give ``text``, ``features``, ``vector`` or several of them.
        ``options`` are those of ``ClassifyOptions``.
        """
        request = classify_request(as_instance(instance, text, features, vector), options)
        return convert_answer(self.client.classify(self.name, request), ClassifyAnswer, self.client.url)

    def learn(
        self,
        instance: str | InputInstance | None = None,
        labels: Sequence[str] = (),
        *,
        text: InputText | None = None,
        features: Features | None = None,
        vector: Any = None,
        **more: Unpack[LearnKwargs],
    ) -> LearnAnswer:
        """Learn one instance with its labels: ``learn("wheat prices rise", ["grain"])``. Later answers reflect it.

        The instance is given as for ``classify``, or by ``prediction``. ``more`` takes the other fields of
        ``Labelled``.
        """
        request = learn_request(as_instance(instance, text, features, vector), labels, more)
        return convert_answer(self.client.learn(self.name, request), LearnAnswer, self.client.url)

    def classify_many(
        self, instances: Iterable[str | InputInstance | Fields], **options: Unpack[ClassifyOptions]
    ) -> Iterator[ClassifyAnswer | Refused]:
        """Yield an answer for each instance, in order: its labels, or the error that refused it.

        An instance is a text, an ``InputInstance`` or a dict of its fields.
        """
        lines = map(classify_encoder(options), instances)
        for answer in self.client.classify_stream(self.name, lines):
            yield to_answer(answer, ClassifyAnswer, self.client.url)

    def learn_many(
        self, instances: Iterable[Labelled | Fields], *, keyed: bool = True
    ) -> Iterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it.

        A request holds a thousand instances, or ends with the first instance that arrives a second after its first one.
        The client waits as long as its source does: the last instances are sent once the source yields more or ends.

        The log keeps the order of the instances, except for instances refused for now, by a rate limit or a busy
        service. They are learned after the accepted instances of their request.

        Parameters
        ----------
        instances : iterable of Labelled, or of dicts of its fields
        keyed : bool
            Add an idempotency key to instances without one, so that interrupted requests can be sent again.
        """
        lines = map(learn_encoder(keyed), instances)
        for answer in self.client.learn_stream(self.name, lines, keyed=keyed):
            yield to_answer(answer, LearnAnswer, self.client.url)
