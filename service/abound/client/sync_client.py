"""The synchronous client, and one model accessed through it.

``Client`` runs an ``AsyncClient`` on an event loop in a thread of its own. Threads may share a client; it keeps its
connections open and reuses them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import httpx
from anyio import to_thread
from anyio.from_thread import start_blocking_portal

from abound.api.schemas.learn_classify import ClassifyAnswer, LearnAnswer
from abound.client.async_client import AsyncClient
from abound.client.errors import Answer, Refused, convert_answer, model_exists
from abound.client.instances import (
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
from abound.client.requests import Call, in_thread, model_path, read_pieces
from abound.client.resources import ModelLabels, Resources
from abound.client.streams import bounded

T = TypeVar("T")


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
    transport : httpx.AsyncBaseTransport or None
        Used instead of the network.
    pause : callable
        Waits the given seconds before another attempt.

    Raises
    ------
    Refused, Unreachable, Interrupted
        By every method, after the last attempt; see ``abound.client.retries``. Refused with status 422 is also
        raised without a request: for names that a path cannot hold (empty, ``.`` or ``..``), and for numbers that
        JSON cannot represent (NaN and the infinities).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        async def wait(seconds: float) -> None:
            await to_thread.run_sync(pause, seconds)

        self._client = AsyncClient(url, key=key, timeout=timeout, transport=transport, pause=wait)
        self.url = self._client.url
        self._pid = os.getpid()
        stack = ExitStack()  # not AsyncClient.close: a thread cannot be started at the exit of the interpreter
        stack.callback(self._client._stop)
        self._portal = stack.enter_context(start_blocking_portal())
        stack.callback(self._portal.call, self._portal.stop, True)  # ends what an interrupted call left behind
        stack.callback(self._portal.call, self._client._http.aclose)
        thread = self._portal.call(threading.get_ident)
        self._close = weakref.finalize(self, _close, self._pid, thread, stack)  # also for a client that is never closed

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
        return self._iterate(self._client.follow(job))

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
        for request in bounded(lines):  # in the caller's thread, which the source may belong to
            yield from self._run(self._client._lines, path, request, repeatable, before)
            before += len(request)

    # Requests

    def _ask(self, call: Call) -> Answer:
        if not isinstance(call.content, bytes | AsyncIterator):
            call = replace(call, content=in_thread(call.content))
        return self._run(self._client._ask, call)

    def _delete(self, path: str) -> None:
        self._run(self._client._delete, path)

    def _read(self, path: Path) -> Iterable[bytes]:
        return read_pieces(path)

    def _download(self, path: str) -> Iterator[bytes]:
        return self._iterate(self._client._download(path))

    def _run(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        if self._pid != os.getpid():
            raise RuntimeError("this client was made in another process: make one after the fork")
        result = self._portal.start_task_soon(function, *arguments)
        try:
            return result.result()
        except BaseException:
            result.cancel()  # the caller was interrupted: it waits no longer
            raise

    def _iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        try:
            while True:
                try:
                    item = self._run(items.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._run(items.aclose)


def _close(pid: int, thread: int, stack: ExitStack) -> None:
    if pid != os.getpid():  # a forked process has no such thread
        return
    if thread == threading.get_ident():  # the garbage collector runs in any thread, and a thread cannot wait for itself
        threading.Thread(target=stack.close).start()
    else:
        stack.close()


class Model:
    """One model, accessed through a ``Client``; ``client.model(name)`` returns it."""

    def __init__(self, client: Client, name: str = "default") -> None:
        self.client = client
        self.name = name
        self.labels: ModelLabels[Answer] = ModelLabels(client, name)

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
        sent = Outgoing(classify_encoder(options), instances)
        for answer in self.client.classify_stream(self.name, sent.lines()):
            yield from sent.refused()
            yield to_answer(answer, ClassifyAnswer, self.client.url)
        yield from sent.refused(ended=True)

    def learn_many(
        self, instances: Iterable[Labelled | Fields], *, keyed: bool = True, **columns: Any
    ) -> Iterator[LearnAnswer | Refused]:
        """Learn instances and yield an answer for each, in order: its outcome, or the error that refused it.

        A request holds a thousand instances, or ends with the first instance that arrives a second after its first one.
        The client waits as long as its source does: the last instances are sent once the source yields more or ends.

        The log keeps the order of the instances, except for instances refused for now, by a rate limit or a busy
        service. They are learned after the accepted instances of their request.

        Parameters
        ----------
        instances : iterable of Labelled or of dicts of its fields, or a frame of pandas or Polars
            One that cannot be sent is refused at its place.
        keyed : bool
            Add an idempotency key to instances without one, so that interrupted requests can be sent again.
        columns
            Roles of the columns of a frame, or of the fields of dicts: ``text="title", label="topic"``.
        """
        sent = Outgoing(learn_encoder(keyed), rows_of(instances, columns))
        for answer in self.client.learn_stream(self.name, sent.lines(), keyed=keyed):
            yield from sent.refused()
            yield to_answer(answer, LearnAnswer, self.client.url)
        yield from sent.refused(ended=True)
