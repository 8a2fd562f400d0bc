"""The files of the page at ``/``: read and compressed once, served with caching and security headers.

The page refers to its files below ``web/<digest>/``, where the digest covers all files together, so clients may
cache them forever. Behind a load balancer, replicas of two releases can run side by side. A file requested with
the digest of the other release is answered with this release's file and must not be cached.
"""

from __future__ import annotations

import gzip
import hashlib
from importlib import metadata
from importlib.resources import files
from typing import NamedTuple

from fastapi import Response

from abound.api.compression import takes_gzip
from abound.api.request_body import Headers

MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

SCRIPTS = ("app.js", "theme.js")  # that the page names itself
DIGEST_PLACEHOLDER = b"web/@/"  # in the page, for ``web/<digest>/``
VERSION_PLACEHOLDER = b"@version"  # in the page, for the version of the product
MODULES_PLACEHOLDER = b"@modules"  # in the page, for links that load all modules at once, not one after the other
CACHE_FOREVER = "public, max-age=31536000, immutable"
CACHE_REVALIDATE = "no-cache"
CACHE_NEVER = "no-store"

CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
"""Only files of this service, nothing inline, and no text that becomes markup or script."""

SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Asset(NamedTuple):
    media: str
    plain: bytes
    compressed: bytes
    tag: str

    def response(self, headers: Headers, caching: str) -> Response:
        """Return the file in the encoding that the client accepts; 304 when the client has it already."""
        is_small = takes_gzip(headers)
        tag = f'"{self.tag}-gz"' if is_small else f'"{self.tag}"'
        answer_headers = {**SECURITY_HEADERS, "cache-control": caching, "etag": tag, "vary": "Accept-Encoding"}
        if matches_tag(headers.get(b"if-none-match", b""), tag):
            return Response(status_code=304, headers=answer_headers)
        if is_small:
            answer_headers["content-encoding"] = "gzip"
        return Response(self.compressed if is_small else self.plain, headers=answer_headers, media_type=self.media)


class StaticSite:
    """All files of the page; ``digest``, part of their URLs, is that of all of them together."""

    def __init__(self) -> None:
        folder = files("abound").joinpath("web")
        contents = {file.name: file.read_bytes() for file in folder.iterdir() if _kind(file.name) in MEDIA}
        modules = [name for name in sorted(contents) if _kind(name) == "js" and name not in SCRIPTS]
        whole = hashlib.sha256()
        for name, content in sorted(contents.items()):
            whole.update(f"{name} {len(content)}\n".encode() + content)
        self.digest = whole.hexdigest()[:16]
        page = contents.pop("index.html").replace(DIGEST_PLACEHOLDER, f"web/{self.digest}/".encode())
        links = "".join(f'<link rel="modulepreload" href="web/{self.digest}/{name}">' for name in modules)
        page = page.replace(MODULES_PLACEHOLDER, links.encode())
        page = page.replace(VERSION_PLACEHOLDER, metadata.version("abound").encode())
        self._page = asset("index.html", page)
        self._assets = {name: asset(name, content) for name, content in contents.items()}

    def page(self, headers: Headers) -> Response:
        return self._page.response(headers, CACHE_REVALIDATE)

    def file(self, digest: str, name: str, headers: Headers) -> Response | None:
        found = self._assets.get(name)
        return (
            None if found is None else found.response(headers, CACHE_FOREVER if digest == self.digest else CACHE_NEVER)
        )


def asset(name: str, content: bytes) -> Asset:
    media = MEDIA[_kind(name)]
    return Asset(media, content, gzip.compress(content, 6, mtime=0), hashlib.sha256(content).hexdigest()[:24])


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def matches_tag(known: bytes, tag: str) -> bool:
    """Return whether an ``If-None-Match`` names this tag, strong or weak, or any tag."""
    named = [one.strip().removeprefix("W/") for one in known.decode("latin-1").split(",")]
    return tag in named or "*" in named
