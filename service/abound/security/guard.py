"""Authorization of requests: the key that each path requires, and the guard that checks it.

=============================================  ==========================================================
path                                           requires
=============================================  ==========================================================
``/livez`` ``/readyz`` ``/openapi.json``       no key: they show at most names of models that wait
``/docs`` ``/`` ``/web/...``
POST ``.../classify`` and ``.../learn``        that scope, for the model
PUT ``.../labels``                             ``learn``, for the model
GET of a model, its stats, labels, label,      any scope, for the model
snapshots, versions, challengers
GET ``.../events`` and ``.../suspicious``      ``learn``, for the model
DELETE ``.../events/{offset}``                 ``learn``, for the model
DELETE ``.../suspicious/{offset}``             ``learn``, for the model
GET ``.../uncertain``                          ``classify`` and ``learn``, for the model
``/models`` ``/methods``                       any scope; only the models that the key is for are listed
``/metrics``                                   any scope, not limited to models
everything else under ``/models/{model}``      ``admin``, for the model
everything else                                ``admin``, not limited to models
=============================================  ==========================================================

A path that is not listed requires the most: a new route is closed until it is opened here.

If no key exists, requests need none, and the service is bound to loopback. It then answers a browser only if
the host is an IP address or a name of this machine, and the page is the service's own or of this machine.
Browsers are recognized by Accept-Language, which all of them send, and by Origin, which they add to requests
that change something. A foreign page therefore cannot reach the service by resolving its own name to
127.0.0.1 (DNS rebinding), nor by sending requests whose answers it cannot read. Images, scripts, frames and links
of a foreign page carry no Origin. Sec-Fetch-Site tells them apart; they reach only the paths that never need a key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any, NamedTuple

import structlog

from abound.security.audit import Actor
from abound.security.key_ring import Grant, KeyRing
from abound.settings import is_loopback
from abound_core.errors import Forbidden, Unauthorized

log = structlog.get_logger(__name__)

READ = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = frozenset({"/livez", "/readyz", "/openapi.json", "/docs", "/"})
LIST_PATHS = frozenset({"/models", "/methods"})

LEARNS = ("learn",)
ADMIN = ("admin",)
READABLE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("comparison", "stats", "label", "labels", "snapshots", "versions", "challengers"), ()),
    "events": LEARNS,
    "suspicious": LEARNS,
    "uncertain": ("classify", "learn"),
}
"""The scopes that reading these parts of a model requires."""

REFUSAL_LOG_SECONDS = 1.0
MAX_FORWARDED = 256
MAX_PATH = 512


class KeyRequirement(NamedTuple):
    scopes: tuple[str, ...]  # all of these; (): any
    model: str | None  # None: all
    is_list: bool = False  # the path lists models: a key for some of them is enough


def requirement_of(method: str, path: str) -> KeyRequirement | None:
    reads = method in READ
    if reads and (path in OPEN_PATHS or path.startswith(("/docs/", "/web/"))):
        return None
    if method == "OPTIONS" or (reads and path in LIST_PATHS):
        return KeyRequirement((), None, True)
    if reads and path == "/metrics":
        return KeyRequirement((), None)
    parts = path.split("/")
    if method == "POST" and path in ("/classify", "/learn"):
        return KeyRequirement((parts[1],), "default")
    if len(parts) < 3 or parts[1] != "models" or not parts[2]:
        return KeyRequirement(ADMIN, None)
    rest = parts[3:]
    if method == "POST" and rest in (["classify"], ["learn"]):
        return KeyRequirement((rest[0],), parts[2])
    deletes = method == "DELETE" and len(rest) == 2 and rest[0] in ("events", "suspicious")
    if deletes or (method == "PUT" and rest == ["labels"]):
        return KeyRequirement(LEARNS, parts[2])
    if reads and len(rest) == 1 and rest[0] in READABLE:
        return KeyRequirement(READABLE[rest[0]], parts[2])
    if reads and (not rest or rest[0] == "labels" or _is_card(rest)):
        return KeyRequirement((), parts[2])
    return KeyRequirement(ADMIN, parts[2])


def _is_card(rest: list[str]) -> bool:
    """Return whether a path below a model is a version itself, not something inside it."""
    return len(rest) == 2 and rest[0] == "versions"


class Guard:
    """Checks the keys of all requests.

    ``any_host``: under any host name, as other machines reach the service. ``origins``: those of web pages that may ask
    without a key.
    """

    def __init__(self, ring: KeyRing, any_host: bool, origins: Iterable[str] = ()) -> None:
        self._ring = ring
        self._any_host = any_host
        self._origins = frozenset(origin.encode() for origin in origins)
        self._last_logged = -REFUSAL_LOG_SECONDS
        self._not_logged = 0

    def admit(
        self, headers: Mapping[bytes, bytes], needed: str, model: str, scope: MutableMapping[str, Any]
    ) -> Grant | None:
        """Authorize a hot request. Return the grant of its key, None if none is required, and put it in ``scope``."""
        try:
            grant = self.grant_of(headers, needed, model)
        except (Unauthorized, Forbidden) as error:
            if self._ring.required:
                self._log_refusal(error, scope.get("client"))
            raise
        scope["grant"] = grant
        return grant

    def grant_of(self, headers: Mapping[bytes, bytes], needed: str, model: str) -> Grant | None:
        """Return and raise the same as ``admit``, without logging a refusal."""
        if not self._ring.required:
            if not self._any_host and (b"origin" in headers or b"accept-language" in headers):
                _check_browser(headers, self._origins)
            return None
        grant = self._ring.find(headers.get(b"authorization"))
        grant.check(needed, model)
        return grant

    def admit_any(self, headers: Mapping[bytes, bytes], scope: MutableMapping[str, Any]) -> Grant | None:
        """Authorize a request of a route that is not hot, by its method and path. Raise as ``admit``."""
        need = requirement_of(scope["method"], scope["path"])
        if not self._ring.required:
            if not self._any_host and (b"origin" in headers or b"accept-language" in headers):
                _check_browser(headers, self._origins, is_open=need is None)
            return None
        if need is None:
            return None
        try:
            grant = self._ring.find(headers.get(b"authorization"))
            if not need.is_list:
                for needed in need.scopes or (None,):
                    grant.check(needed, need.model)
        except (Unauthorized, Forbidden) as error:
            self._log_refusal(error, scope.get("client"))
            raise
        scope["grant"] = grant
        return grant

    def _log_refusal(self, error: Unauthorized | Forbidden, client: Any) -> None:
        """Log a refused request: at most one line a second, with the number of refusals since the last line."""
        now = time.monotonic()
        if now - self._last_logged < REFUSAL_LOG_SECONDS:
            self._not_logged += 1
            return
        log.warning("refused", reason=str(error), address=address_of(client), others=self._not_logged)
        self._last_logged, self._not_logged = now, 0


def _check_browser(headers: Mapping[bytes, bytes], origins: frozenset[bytes], is_open: bool = False) -> None:
    """Raise Forbidden if the host is a name that anybody could own, or if the asking page is foreign.

    A link on a foreign page may lead to an open path, such as the page.
    """
    host, origin = headers.get(b"host"), headers.get(b"origin")
    name = _name_of(host or b"")
    if not _is_local(name) and not _is_address(name):
        raise Forbidden(
            f"without any key this service answers browsers as localhost or by IP address, not as {name[:100]!r}. "
            "Create a key (abound keys create), or start it with --insecure"
        )
    if origin is None:
        if not is_open and headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            raise Forbidden(
                "without any key this service refuses what web pages of other origins load or link to. "
                "Open it from its own page or the address bar, create a key (abound keys create), "
                "or start it with --insecure"
            )
    elif origin not in origins:
        scheme, _, asking = origin.partition(b"://")
        if scheme not in (b"http", b"https") or (asking != host and not _is_local(_name_of(asking))):
            raise Forbidden(
                f"without any key this service refuses requests from web pages of {origin[:100].decode('latin-1')!r}. "
                "Name the origin in ABOUND_CORS_ORIGINS"
            )


def _name_of(location: bytes) -> str:
    name = location.decode("latin-1").lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def _is_local(name: str) -> bool:
    return name.endswith(".localhost") or is_loopback(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def address_of(client: Any) -> str:
    return str(client[0]) if client else "unknown"


def log_request(scope: Mapping[str, Any], status: int, seconds: float) -> None:
    """Log an answered request. The line omits its query, headers and body."""
    grant: Grant | None = scope.get("grant")
    log.info(
        "request",
        method=scope["method"],
        path=scope["path"][:MAX_PATH],
        status=status,
        ms=round(seconds * 1000, 3),
        key=None if grant is None else grant.id,
        address=address_of(scope.get("client")),
    )


def actor_of(scope: Mapping[str, Any]) -> Actor:
    grant: Grant | None = scope.get("grant")
    forwarded = dict(scope["headers"]).get(b"x-forwarded-for")
    return Actor(
        None if grant is None else grant.id,
        address_of(scope.get("client")),
        scope.get("request_id"),
        None if forwarded is None else forwarded[-MAX_FORWARDED:].decode("latin-1"),
    )
