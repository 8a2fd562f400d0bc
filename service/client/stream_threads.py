"""The connections of streams: each stream has its own, and whoever leaves it ends them.

No request of ``httpx`` can be cancelled by another thread, but one tells of itself while it is made (its extension
``trace``). So the sockets are known, and one that is shut wakes the thread that waits for an answer on it; and a
request that is still connecting when its stream is left is never sent. The calls of the client are not kept waiting by
a stream: its connections are not among theirs.

Work of a stream in a thread of its own, which can be left; ``abound.service.client.stream_threads`` ends what it waits
for.

A thread that is still connecting, or sends by a transport that was given, goes on until that has come to something or
the time to wait for it is over: it sends nothing more, and does not keep the program from ending.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import httpx

from abound.service.client.errors import Answer, is_on_this_machine, no_cookies, of_environment
from abound.service.client.requests import NDJSON

SHARED = httpx.Limits(max_connections=100, max_keepalive_connections=20)
"""Connections of all calls that are no streams."""

OF_A_STREAM = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""As many as requests on their way: none waits for the connection of another."""


def connecting(
    url: str, headers: Mapping[str, str], timeout: float, given: httpx.BaseTransport | None
) -> Callable[[httpx.Limits], httpx.Client]:
    """Makes what requests are sent by: the proxy that the environment names, but not to a service on this machine."""
    with of_environment(url):
        trusted = httpx.create_ssl_context() if given is None else True  # read once: that takes longer than all else

    def connect(limits: httpx.Limits) -> httpx.Client:
        with of_environment(url):
            transport = given  # it takes no proxy
            if given is None and is_on_this_machine(url):
                transport = httpx.HTTPTransport(verify=trusted, limits=limits)
            return httpx.Client(
                base_url=url,
                headers=headers,
                timeout=timeout,
                limits=limits,
                transport=transport,
                verify=trusted,
                cookies=no_cookies(),
            )

    return connect


class Left(Exception):
    """A request is not sent: its stream was left."""


class Connections:
    """What a stream sends by.

    Parameters
    ----------
    http : httpx.Client
    own : bool
        Nobody else sends by it.

    Attributes
    ----------
    ended : threading.Event
        The stream was left.
    """

    def __init__(self, http: httpx.Client, own: bool = False) -> None:
        self.ended = threading.Event()
        self._http = http
        self._own = own
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def send(self, path: str, body: bytes) -> AbstractContextManager[httpx.Response]:
        """Send lines; Left where nobody waits for their answers any more."""
        return self._http.stream("POST", path, content=body, headers=NDJSON, extensions={"trace": self._trace})

    def end(self) -> None:
        """Send nothing more, and hang up on what is on its way."""
        with self._lock:
            self.ended.set()
            for one in self._sockets:
                _shut(one)

    def close(self) -> None:
        """Close them, unless they are those of others, too."""
        if self._own:
            self._http.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            if self.ended.is_set():
                raise Left
        elif self._own and event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._note(info["return_value"].get_extra_info("socket"))

    def _note(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets = [one for one in self._sockets if one.fileno() >= 0]
            self._sockets.append(made)
            if self.ended.is_set():
                _shut(made)


def _shut(one: socket.socket) -> None:
    """End a connection: whoever waits for it learns so. Not as TLS does it, which is for the thread that reads."""
    with suppress(OSError):
        socket.socket.shutdown(one, socket.SHUT_RDWR)


class Streams:
    """The connections of a client's streams; those of a stream that was read to its end are kept for the next.

    Parameters
    ----------
    shared : httpx.Client
        What the client sends its other calls by.
    connect : callable or None
        Makes another one like it; None: a transport was given, which is what streams send by, too.
    """

    def __init__(self, shared: httpx.Client, connect: Callable[[httpx.Limits], httpx.Client] | None) -> None:
        self._shared = shared
        self._connect = connect
        self._kept: list[Connections] = []
        self._taken: list[Connections] = []
        self._lock = threading.Lock()

    @contextmanager
    def connections(self) -> Iterator[Connections]:
        """Those of one stream."""
        with self._lock:
            taken = self._kept.pop() if self._kept else self._made()
            self._taken.append(taken)
        try:
            yield taken
        finally:
            with self._lock:
                self._taken.remove(taken)
                keep = self._connect is not None and not taken.ended.is_set() and not self._shared.is_closed
                if keep:
                    self._kept.append(taken)
            if not keep:
                taken.close()

    def close(self) -> None:
        """Close all, those of streams that are under way, too. The client has been closed."""
        with self._lock:
            every, self._kept = self._kept + self._taken, []
        for one in every:
            one.close()

    def _made(self) -> Connections:
        if self._connect is None or self._shared.is_closed:  # what is closed says so
            return Connections(self._shared)
        return Connections(self._connect(OF_A_STREAM), own=True)


LEAVING_SECONDS = 1.0
"""So long those that are left are waited for: who pauses, or waits for an answer, ends at once."""


class Sending(threading.Thread):
    """A request on its way, begun at once.

    Parameters
    ----------
    work : callable
        Sends it, and gives an answer a line.
    """

    def __init__(self, work: Callable[[], list[Answer]]) -> None:
        super().__init__(name="abound-client", daemon=True)
        self._work = work
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do the work; what it raises is kept."""
        try:
            self._answers = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> list[Answer]:
        """What came of it, as soon as it is known; raises what the work has raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._answers


def first(sent: deque[Sending]) -> list[Answer]:
    """The answers of the request that was sent first; while it is waited for it stays in the queue."""
    answers = sent[0].result()
    sent.popleft()
    return answers


def in_order(sent: deque[Sending]) -> Iterator[Answer]:
    """The answers of all requests that are on their way."""
    while sent:
        yield from first(sent)


def leave(sent: deque[Sending]) -> None:
    """Wait a moment for those that are about to end; the others end by themselves."""
    deadline = time.monotonic() + LEAVING_SECONDS
    for one in sent:
        one.join(max(0.0, deadline - time.monotonic()))
