"""``/``: the web page and its files."""

from __future__ import annotations

import asyncio
from functools import cache

from fastapi import APIRouter, Request, Response

from abound.api.problems import UnknownPath
from abound.api.static_files import StaticSite

router = APIRouter(include_in_schema=False)


@cache
def static_site() -> StaticSite:
    return StaticSite()


@router.get("/")
async def page(request: Request) -> Response:
    """Return the page. It needs no key because it contains no data; it fetches them with the user's key."""
    return (await asyncio.to_thread(static_site)).page(dict(request.scope["headers"]))


@router.get("/web/{digest}/{name}")
async def page_file(digest: str, name: str, request: Request) -> Response:
    """Return a file of the page."""
    found = (await asyncio.to_thread(static_site)).file(digest, name, dict(request.scope["headers"]))
    if found is None:
        raise UnknownPath(f"nothing is served under /web/{digest[:100]}/{name[:100]}")
    return found
