"""``/``: the page for people, and the files that it loads."""

from __future__ import annotations

import asyncio
from functools import cache

from fastapi import APIRouter, Request, Response

from abound.service.api.problems import UnknownPath
from abound.service.api.static_files import Site

router = APIRouter(include_in_schema=False)


@cache
def site() -> Site:
    """The files; read and compressed when they are asked for the first time."""
    return Site()


@router.get("/")
async def page(request: Request) -> Response:
    """The page: it asks for no key, since it tells nothing; what it shows it asks for with the user's."""
    return (await asyncio.to_thread(site)).page(dict(request.scope["headers"]))


@router.get("/web/{digest}/{name}")
async def page_file(digest: str, name: str, request: Request) -> Response:
    """One file of the page."""
    found = (await asyncio.to_thread(site)).file(digest, name, dict(request.scope["headers"]))
    if found is None:
        raise UnknownPath(f"nothing is served under /web/{digest[:100]}/{name[:100]}")
    return found
