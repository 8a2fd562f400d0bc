"""A web form that suggests subjects for a text and learns which one people take.

    abound serve                                               # in one terminal
    uvicorn examples.web_form:app --port 8080                  # in another; then open http://127.0.0.1:8080

The form asks for suggestions with ``remember``, so what comes back later is only an id and the right label. While the
service is away the form still works: it shows no suggestions, and says so when something could not be learned.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from abound.client import AsyncClient, AsyncModel, ClientError, Refused

PAGE = """<!doctype html><html lang="en"><title>Subjects</title><h1>Which subject?</h1><p role="status">{said}</p>
<form method="post" action="/suggest"><label>Text <textarea name="text" required>{text}</textarea></label>
<button>Suggest</button></form>{suggestions}</html>"""
CHOICE = """<form method="post" action="/learn"><input type="hidden" name="id" value="{id}">
<fieldset><legend>Subject</legend>{options}
<label>Another one <input name="other"></label></fieldset><button>That is right</button></form>"""
OPTION = '<label><input type="radio" name="label" value="{label}"> {label} ({score:.2f})</label><br>'


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all requests: its connections are kept."""
    url = os.environ.get("ABOUND_URL", "http://127.0.0.1:8000")
    async with AsyncClient(url, key=os.environ.get("ABOUND_KEY"), timeout=5.0) as client:
        app.state.model = AsyncModel(client, "default")
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def form() -> str:
    """The empty form."""
    return PAGE.format(said="", text="", suggestions="")


@app.post("/suggest", response_class=HTMLResponse)
async def suggest(request: Request) -> str:
    """The subjects that the model would give, to choose from."""
    text = (await fields(request)).get("text", "")
    model: AsyncModel = request.app.state.model
    try:
        answer = await model.classify(text=text, k=5, remember=True)
    except ClientError as error:
        return PAGE.format(said=f"No suggestions: {escape(str(error))}", text=escape(text), suggestions="")
    options = "".join(OPTION.format(label=escape(one.label, quote=True), score=one.score) for one in answer.labels)
    if answer.id is None:
        return PAGE.format(said="The log is away: nothing can be learned now.", text=escape(text), suggestions=options)
    choice = CHOICE.format(id=escape(str(answer.id)), options=options)
    return PAGE.format(said="", text=escape(text), suggestions=choice)


@app.post("/learn", response_class=HTMLResponse)
async def learn(request: Request) -> str:
    """Learn what somebody took; the next suggestion already knows."""
    given = await fields(request)
    label = given.get("other") or given.get("label") or ""
    if not label:
        return PAGE.format(said="Choose a subject, or name another one.", text="", suggestions="")
    model: AsyncModel = request.app.state.model
    try:
        shown = given.get("id", "")  # as the key too: a form that is sent twice is learned once
        learned = await model.learn(labels=[label], prediction=shown, source="form", key=f"form-{shown}")
    except Refused as error:
        said = {404: "Too late: ask for suggestions again.", 422: "This was learned before."}.get(
            error.status, str(error)
        )
        return PAGE.format(said=escape(said), text="", suggestions="")
    except ClientError as error:
        return PAGE.format(said=f"Not learned: {escape(str(error))}", text="", suggestions="")
    place = f"suggestion {learned.rank}" if learned.rank else "not suggested"
    return PAGE.format(said=f"Learned {escape(label)}, which was {place}.", text="", suggestions="")


async def fields(request: Request) -> dict[str, str]:
    """The first value of each field of a form; 400 where it is not UTF-8, as it is or behind percent signs."""
    try:
        given = parse_qs((await request.body()).decode(), errors="strict")
    except UnicodeDecodeError as error:
        raise HTTPException(400, "The form is not UTF-8.") from error
    return {name: values[0] for name, values in given.items()}
