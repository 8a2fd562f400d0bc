"""What a request can come to instead of its answer.

ClientError
├── Refused        the service answered with a problem document
├── Unreachable    no answer, and nothing of the request can have been taken
└── Interrupted    the answer broke off or cannot be read: what was sent after the last answered line may or may not
                   have been taken
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec

from abound.core.errors import AboundError

Answer = dict[str, Any]
"""A JSON document as the service answers it; ``/openapi.json`` describes each."""

Shape = TypeVar("Shape")

LONGEST_PAUSE = 9
"""Digits of a pause that a service asks for; what is longer is none."""


_decode = msgspec.json.Decoder(Answer).decode


def decode(data: bytes | str) -> Answer:
    """A document; msgspec.DecodeError where it is none."""
    try:
        return _decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


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


def refused(response: httpx.Response) -> Refused:
    """What an answer that is no success says; it must have been read."""
    try:
        problem = decode(response.content)
    except msgspec.DecodeError:
        problem = {"detail": f"{response.request.url} answers {response.status_code} {response.reason_phrase}"}
    pause = response.headers.get("Retry-After", "")
    if pause.isascii() and pause.isdigit() and len(pause) <= LONGEST_PAUSE:
        problem.setdefault("retry_after", int(pause))
    return Refused(response.status_code, problem)


def document(response: httpx.Response, url: str) -> Answer:
    """The document that an answer is; Refused when it is a problem, or none of this service's."""
    if not response.is_success:
        raise refused(response)
    try:
        return decode(response.content) if response.content else {}
    except msgspec.DecodeError as error:
        raise Refused(response.status_code, {"detail": f"{url} does not answer like this service"}) from error


@contextmanager
def told_apart(url: str, what: str = "the answer") -> Iterator[None]:
    """Errors of the transport as Unreachable where nothing was sent, and as Interrupted otherwise.

    An answer that cannot be unpacked or read is Interrupted, too: nobody knows what became of the request.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        if _is_behind_proxy(url):
            detail = "the environment names a proxy, in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY: look whether it answers"
        else:
            detail = "start one with: abound serve, or name another address"
        raise Unreachable(f"no service answers at {url} ({_said(error)}); {detail}") from error
    except httpx.TransportError as error:
        raise Interrupted(f"{url}: {what} broke off: {_said(error)}", [], 1) from error
    except (httpx.RequestError, msgspec.DecodeError) as error:
        raise Interrupted(f"{url}: {what} cannot be read: {_said(error)}", [], 1) from error


def shaped(answer: Answer, shape: type[Shape], url: str) -> Shape:
    """An answer as what it is to be; Interrupted where it is something else."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise Interrupted(f"{url} does not answer like this service: {error}", [], 1) from error


def bearer(key: str | None) -> dict[str, str]:
    """The header that a key travels in; ValueError for one that cannot."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the key has a character that no key has: it has to be printable ASCII, without a line end")
    return {"Authorization": f"Bearer {key}"}


def no_cookies() -> CookieJar:
    """Takes no cookie: one of a balancer would hold a client to one replica, and an odd one breaks its requests."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def address(url: str) -> str:
    """The URL of a service, without a slash at its end; Unreachable where it can be none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"{url} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Unreachable(f"{url} is not a URL of a service: it has to be like http://127.0.0.1:8000")
    return url.rstrip("/")


def is_on_this_machine(url: str) -> bool:
    """Whether the service at a URL is asked by the loopback interface, where no proxy stands between."""
    host = httpx.URL(url).host.rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        found = ip_address(host)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def _is_behind_proxy(url: str) -> bool:
    """Whether the environment names a proxy that this URL is asked by."""
    parsed = httpx.URL(url)
    if is_on_this_machine(url) or proxy_bypass(parsed.host):
        return False
    return not {parsed.scheme, "all"}.isdisjoint(getproxies())


@contextmanager
def of_environment(url: str) -> Iterator[None]:
    """What the environment says of proxies and certificates and cannot be used, as Unreachable."""
    try:
        yield
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise Unreachable(
            f"{url} cannot be asked with the proxies or certificates that the environment names ({_said(error)}): "
            "look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
