"""Errors of the clients, with helpers that decode answers and check addresses.

ClientError
├── Refused        the service answered with a problem document
├── Unreachable    no answer, and the service cannot have processed any part of the request
└── Interrupted    the answer broke off or cannot be read: the service may or may not have processed the lines after
                   the last answered one
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

from abound_core.errors import AboundError

Answer = dict[str, Any]  # a JSON document; ``/openapi.json`` describes each
Shape = TypeVar("Shape")

DEFAULT_URL = "http://127.0.0.1:8000"

MAX_RETRY_AFTER_DIGITS = 9  # longer values of ``Retry-After`` are ignored


_decode = msgspec.json.Decoder(Answer).decode


def decode(data: bytes | str) -> Answer:
    """Return the JSON object in ``data``. Raises msgspec.DecodeError if it holds none."""
    try:
        return _decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


class ClientError(AboundError):
    """Base class of the errors that a request can end with."""


class Refused(ClientError):
    """The service answered with ``problem``, a document with ``title``, ``detail``, ``field`` and any other fields."""

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
    """The answer broke off. ``answers`` holds the complete answers, out of ``sent`` lines in the request."""

    def __init__(self, detail: str, answers: list[Answer], sent: int) -> None:
        super().__init__(detail)
        self.answers = answers
        self.sent = sent


def refusal_of(answer: Answer) -> Refused | None:
    """Return the error if a line of an NDJSON answer is a problem document, else None."""
    status = answer.get("status")
    return Refused(status, answer) if isinstance(status, int) and "title" in answer else None


def model_exists(name: str) -> ValueError:
    return ValueError(
        f"the model {name!r} exists; leave out create, or change it with client.configure({name!r}, {{...}})"
    )


def refusal_of_response(response: httpx.Response) -> Refused:
    """Return the error for an unsuccessful response, whose body must have been read."""
    try:
        problem = decode(response.content)
    except msgspec.DecodeError:
        problem = {"detail": f"{response.request.url} answers {response.status_code} {response.reason_phrase}"}
    pause = response.headers.get("Retry-After", "")
    if pause.isascii() and pause.isdigit() and len(pause) <= MAX_RETRY_AFTER_DIGITS:
        problem.setdefault("retry_after", int(pause))
    return Refused(response.status_code, problem)


def decode_document(response: httpx.Response, url: str) -> Answer:
    """Return the JSON document of a response. Raises Refused if it is a problem or not from this service."""
    if not response.is_success:
        raise refusal_of_response(response)
    try:
        return decode(response.content) if response.content else {}
    except msgspec.DecodeError as error:
        raise Refused(
            response.status_code, {"detail": f"{url} does not answer like this service; check the URL"}
        ) from error


@contextmanager
def transport_errors(url: str, what: str = "the answer") -> Iterator[None]:
    """Translate transport errors: to Unreachable if nothing was sent, otherwise to Interrupted.

    An answer that cannot be decompressed or decoded is Interrupted, too: the service may have processed the request.
    """
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        if _is_behind_proxy(url):
            detail = "the environment names a proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY; check that it answers"
        else:
            detail = "start one with: abound serve, or use another URL"
        raise Unreachable(f"no service answers at {url} ({_text_of(error)}); {detail}") from error
    except httpx.TransportError as error:
        raise Interrupted(f"{url}: {what} broke off: {_text_of(error)}", [], 1) from error
    except (httpx.RequestError, msgspec.DecodeError) as error:
        raise Interrupted(f"{url}: {what} cannot be read: {_text_of(error)}", [], 1) from error


def convert_answer(answer: Answer, shape: type[Shape], url: str) -> Shape:
    """Return an answer converted to ``shape``. Raises Interrupted if it does not fit."""
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise Interrupted(f"{url} does not answer like this service: {error}", [], 1) from error


def bearer_header(key: str | None) -> dict[str, str]:
    """Return the header that carries a key. Raises ValueError if the key cannot stand in a header."""
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the key has invalid characters; a key is printable ASCII, without a line break")
    return {"Authorization": f"Bearer {key}"}


def no_cookies() -> CookieJar:
    """Return a jar that accepts none: one would tie the client to a replica, a malformed one breaks its requests."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def normalize_url(url: str) -> str:
    """Return the URL of a service without a trailing slash. Raises Unreachable if the URL is invalid."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"{url} is not a URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Unreachable(f"{url} is not a URL of a service; use one like http://127.0.0.1:8000")
    return url.rstrip("/")


def is_on_this_machine(url: str) -> bool:
    """Return whether the URL leads to the loopback interface, which is never reached through a proxy."""
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
    parsed = httpx.URL(url)
    if is_on_this_machine(url) or proxy_bypass(parsed.host):
        return False
    return not {parsed.scheme, "all"}.isdisjoint(getproxies())


@contextmanager
def environment_errors(url: str) -> Iterator[None]:
    """Translate errors in the proxy and certificate settings of the environment to Unreachable."""
    try:
        yield
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise Unreachable(
            f"{url} cannot be reached with the proxies or certificates that the environment names ({_text_of(error)}); "
            "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
