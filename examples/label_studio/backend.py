"""An ML backend for Label Studio: predictions from a model, which learns each annotation that is saved.

    ABOUND_URL=http://127.0.0.1:8000 ABOUND_MODEL=tickets uvicorn examples.label_studio.backend:app --port 9090

The labelling interface must have ``Choices`` for a ``Text``. The key of the service is read from ``ABOUND_KEY``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from xml.etree import ElementTree

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from abound import AsyncClient
from abound.client import AsyncModel, ClientError, InputInstance, Refused

SOURCE = "label-studio"
CREATED, UPDATED, CREATED_MANY = "ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED"
Json = dict[str, Any]


class Control(NamedTuple):
    """The ``Choices`` of a labelling interface, and the ``Text`` that they are for."""

    name: str
    to_name: str
    field: str
    choices: list[str]


def control_of(label_config: str) -> Control:
    """Return the first ``Choices`` whose object is a ``Text``. Raises ValueError where there is none."""
    try:
        root = ElementTree.fromstring(label_config)  # noqa: S314  expat bounds the expansion of entities
    except ElementTree.ParseError as error:
        raise ValueError(f"the labelling interface is not XML: {error}") from error
    texts = {one.get("name"): one.get("value", "") for one in root.iter("Text")}
    for choices in root.iter("Choices"):
        to_name = choices.get("toName", "")
        if to_name in texts:
            labels = [one.get("alias") or one.get("value") or "" for one in choices.iter("Choice")]
            return Control(choices.get("name", ""), to_name, texts[to_name].removeprefix("$"), labels)
    raise ValueError("the labelling interface has no <Choices> for a <Text>")


def labels_of(annotation: Json, control: Control) -> list[str]:
    """Return the choices of an annotation; none where it was skipped."""
    if annotation.get("was_cancelled"):
        return []
    regions = [one for one in annotation["result"] if one.get("from_name") == control.name]
    return [label for region in regions for label in region["value"].get("choices", [])]


def text_of(task: Json, control: Control) -> str:
    """Return the text of a task, which may be a number; empty where there is none."""
    value = task["data"].get(control.field)
    return "" if value is None else str(value)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one client for all requests."""
    async with AsyncClient(timeout=20.0) as client:
        app.state.model = AsyncModel(client, os.environ.get("ABOUND_MODEL", "default"))
        yield


app = FastAPI(title="Abound for Label Studio", lifespan=lifespan)


@app.exception_handler(ClientError)
async def not_answered(request: Request, error: ClientError) -> JSONResponse:
    """Answer 502: the service refused, or did not answer."""
    return JSONResponse({"error": str(error)}, 502)


@app.exception_handler(ValueError)
async def not_understood(request: Request, error: ValueError) -> JSONResponse:
    """Answer 422: the project cannot be used."""
    return JSONResponse({"error": str(error)}, 422)


@app.get("/")
@app.get("/health")
async def health() -> Json:
    """Say that the backend runs; the service is not asked."""
    return {"status": "UP", "model_class": "Abound"}


@app.post("/setup")
async def setup(request: Request) -> Json:
    """Check the labelling interface. The version contains the offset, so that learning makes predictions outdated."""
    control_of((await request.json())["schema"])
    model: AsyncModel = request.app.state.model
    described = await model.client.describe(model.name)
    return {"model_version": f"{described['version']} {described['offset']}"}


@app.post("/predict")
async def predict(request: Request) -> Json:
    """Return the best choice for each task. A task whose text cannot be used gets an empty prediction."""
    body = await request.json()
    control = control_of(body["label_config"])
    model: AsyncModel = request.app.state.model
    instances = [InputInstance(text=text_of(task, control)) for task in body["tasks"]]
    results = []
    async for answer in model.classify_many(instances, k=1, include=control.choices or None):
        if isinstance(answer, Refused) or not answer.labels:
            results.append({"result": [], "score": 0.0})
            continue
        [best] = answer.labels
        region = {"from_name": control.name, "to_name": control.to_name, "type": "choices"}
        results.append({"result": [region | {"value": {"choices": [best.label]}}], "score": best.score})
    return {"results": results}


@app.post("/webhook", status_code=201)
async def webhook(request: Request) -> Json:
    """Learn saved annotations; other actions change nothing.

    The idempotency key is the id of the annotation, and of a later change also its time.
    """
    body = await request.json()
    action = body.get("action")
    if action not in (CREATED, UPDATED, CREATED_MANY):
        return {"learned": 0}
    control = control_of(body["project"]["label_config"])
    annotations, tasks = body["annotation"], body["task"]
    if action != CREATED_MANY:
        annotations, tasks = [annotations], [tasks]
    texts = {task["id"]: text_of(task, control) for task in tasks}
    learned = 0
    for annotation in annotations:
        labels = labels_of(annotation, control)
        if labels:
            version = f"@{annotation['updated_at']}" if action == UPDATED else ""
            key = f"{SOURCE}-{annotation['id']}{version}"
            await request.app.state.model.learn(texts[annotation["task"]], labels, key=key, source=SOURCE)
            learned += 1
    return {"learned": learned}
