"""A classifier for vLLM's semantic router: its ``http_classify`` posts ``{"inputs": text}`` to ``/classify``.

ABOUND_MODEL=topics ROUTER_LABELS=math,law,other uvicorn examples.llm_offramp.semantic_router:app --port 9091
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from abound.client import ClientError
from examples.llm_offramp.offramp import connect

app = FastAPI(title="Abound for the semantic router")
labels = os.environ["ROUTER_LABELS"].split(",")
model = connect().model(os.environ.get("ABOUND_MODEL", "default"))


class Request(BaseModel):
    """What the router sends."""

    inputs: str


class Scored(BaseModel):
    """A label of the router's mapping and its probability."""

    label: str
    score: float


@app.post("/classify")
def classify(request: Request) -> list[Scored]:
    """Return all labels of the mapping: the router expects a distribution, so the rest to 1 is shared by all."""
    try:
        found = model.classify(request.inputs, k=len(labels), include=labels, decide=False).labels
    except ClientError as error:
        raise HTTPException(502, str(error)) from error
    known = {one.label: one.probability or 0.0 for one in found}
    total = max(1.0, sum(known.values()))
    rest = (1.0 - sum(known.values()) / total) / len(labels)
    return [Scored(label=label, score=known.get(label, 0.0) / total + rest) for label in labels]
