"""Threads and connections of concurrent stream requests, which end when the caller abandons the stream.

Each stream has its own connections, so it never makes the client's other calls wait. No thread can cancel an ``httpx``
request of another thread. But the request extension ``trace`` reports each socket as it is opened. Shutting that
socket down wakes the thread that waits for an answer on it. A request that is still connecting when its stream is
abandoned is never sent.

A thread that is still connecting, or sends on a transport given to the client, continues until it succeeds, fails or
times out. It sends nothing more and does not keep the program alive.
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

from abound.service.client.errors import Answer, environment_errors, is_on_this_machine, no_cookies
from abound.service.client.requests import NDJSON

SHARED_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)
"""Connection limits of all calls that are not streams."""

STREAM_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""Connection limits of a stream: as many connections as concurrent requests, so that none waits for another."""


def client_factory(
    url: str, headers: Mapping[str, str], timeout: float, given: httpx.BaseTransport | None
) -> Callable[[httpx.Limits], httpx.Client]:
    """Return a factory of HTTP clients. They use the environment's proxy, except for a service on this machine."""
    with environment_errors(url):
        trusted = httpx.create_ssl_context() if given is None else True  # loaded once, since it is the slowest step

    def connect(limits: httpx.Limits) -> httpx.Client:
        with environment_errors(url):
            transport = given  # an explicit transport ignores proxies
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


class StreamAbandoned(Exception):
    """A request is not sent because its stream was abandoned."""


class StreamConnections:
    """The connections of one stream.

    Parameters
    ----------
    http : httpx.Client
    own : bool
        No other stream or call uses ``http``.

    Attributes
    ----------
    ended : threading.Event
        The stream was abandoned.
    """

    def __init__(self, http: httpx.Client, own: bool = False) -> None:
        self.aborted = threading.Event()
        self._http = http
        self._own = own
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()

    def send(self, path: str, body: bytes) -> AbstractContextManager[httpx.Response]:
        """Send lines. Raises StreamAbandoned if the stream was abandoned."""
        return self._http.stream("POST", path, content=body, headers=NDJSON, extensions={"trace": self._trace})

    def abort(self) -> None:
        """Disconnect pending requests and prevent further ones."""
        with self._lock:
            self.aborted.set()
            for one in self._sockets:
                _shut(one)

    def close(self) -> None:
        """Close the connections unless they are shared."""
        if self._own:
            self._http.close()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            if self.aborted.is_set():
                raise StreamAbandoned
        elif self._own and event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._add_socket(info["return_value"].get_extra_info("socket"))

    def _add_socket(self, made: socket.socket) -> None:
        with self._lock:
            self._sockets = [one for one in self._sockets if one.fileno() >= 0]
            self._sockets.append(made)
            if self.aborted.is_set():
                _shut(made)


def _shut(one: socket.socket) -> None:
    """Shut down a socket, which wakes the thread that waits for it.

    Calls ``socket.socket`` directly: the shutdown of a TLS socket is reserved for the thread that reads from it.
    """
    with suppress(OSError):
        socket.socket.shutdown(one, socket.SHUT_RDWR)


class StreamConnectionPool:
    """Pool of the connections of a client's streams. Connections of a completed stream are reused by the next one.

    Parameters
    ----------
    shared : httpx.Client
        Sends the other calls of the client.
    connect : callable or None
        Makes another ``httpx.Client`` for the same URL. None: streams use ``shared``, which has a given transport.
    """

    def __init__(self, shared: httpx.Client, connect: Callable[[httpx.Limits], httpx.Client] | None) -> None:
        self._shared = shared
        self._connect = connect
        self._idle: list[StreamConnections] = []
        self._in_use: list[StreamConnections] = []
        self._lock = threading.Lock()

    @contextmanager
    def connections(self) -> Iterator[StreamConnections]:
        """Provide the connections of one stream."""
        with self._lock:
            taken = self._idle.pop() if self._idle else self._new_connections()
            self._in_use.append(taken)
        try:
            yield taken
        finally:
            with self._lock:
                self._in_use.remove(taken)
                keep = self._connect is not None and not taken.aborted.is_set() and not self._shared.is_closed
                if keep:
                    self._idle.append(taken)
            if not keep:
                taken.close()

    def close(self) -> None:
        """Close all connections, including those of active streams. Called after the client is closed."""
        with self._lock:
            every, self._idle = self._idle + self._in_use, []
        for one in every:
            one.close()

    def _new_connections(self) -> StreamConnections:
        if self._connect is None or self._shared.is_closed:  # a closed client raises a clear error on use
            return StreamConnections(self._shared)
        return StreamConnections(self._connect(STREAM_LIMITS), own=True)


LEAVING_SECONDS = 1.0
"""Longest wait for the threads of an abandoned stream. Threads that pause or wait for an answer end at once."""


class RequestThread(threading.Thread):
    """A thread that sends one request. It starts at once.

    Parameters
    ----------
    work : callable
        Sends the request and returns an answer for each line.
    """

    def __init__(self, work: Callable[[], list[Answer]]) -> None:
        super().__init__(name="abound-client", daemon=True)
        self._work = work
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Send the request and store its answers or its exception."""
        try:
            self._answers = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> list[Answer]:
        """Wait for the request. Returns its answers or raises its exception."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._answers


def first_answers(sent: deque[RequestThread]) -> list[Answer]:
    """Wait for the oldest request and return its answers. It stays in the queue until then."""
    answers = sent[0].result()
    sent.popleft()
    return answers


def answers_in_order(sent: deque[RequestThread]) -> Iterator[Answer]:
    """Yield the answers of all pending requests, in the order of the requests."""
    while sent:
        yield from first_answers(sent)


def join_abandoned(sent: deque[RequestThread]) -> None:
    """Wait up to ``LEAVING_SECONDS`` for the threads of an abandoned stream. Slower ones end in the background."""
    deadline = time.monotonic() + LEAVING_SECONDS
    for one in sent:
        one.join(max(0.0, deadline - time.monotonic()))
