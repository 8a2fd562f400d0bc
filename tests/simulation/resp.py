"""The store's protocol, as a server speaks it."""

from typing import Any


class Refused(Exception):
    """A reply that is an error."""


class Status(str):
    """A reply that is a word, such as OK."""

    __slots__ = ()


OK = Status("OK")


def encoded(reply: Any) -> bytes:
    """A reply as bytes: None, int, bytes, str, Status, Refused, or a list of replies."""
    kind = type(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if kind is list or kind is tuple:
        return b"*%d\r\n%b" % (len(reply), b"".join([encoded(part) for part in reply]))
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, str):
        return encoded(reply.encode())
    if isinstance(reply, Refused):
        return b"-%b\r\n" % str(reply).encode()
    if reply is NO_LIST:
        return b"*-1\r\n"
    raise TypeError(f"not a reply: {reply!r}")


NO_LIST = object()
"""The nil that stands where a list could."""
