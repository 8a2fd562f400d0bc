"""The one socket that the parent binds and every replica accepts from."""

from __future__ import annotations

import errno
import socket

from core.errors import CannotStart

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening, non-blocking TCP socket that nobody shares; ``port`` 0 takes a free one.

    ``::`` takes IPv4 too. A name is looked up; of several addresses, IPv4 goes first.

    Raises
    ------
    CannotStart
        The name or address is not one of this machine, or the port is taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise CannotStart(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listening = socket.socket(family, kind, protocol)
    try:
        # Lets a port be taken again while old connections on it time out; two listeners never share it.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CannotStart(_refusal(host, port, error)) from None
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """``http://host:port`` of a listening socket, as a client on this machine may write it."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program; choose another --port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} is not allowed to this user; choose a --port of 1024 or more"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}, port {port}: {error.strerror or error}"
