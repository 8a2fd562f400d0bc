"""The OpenAPI document: FastAPI's own, completed with the hot routes, which FastAPI does not know.

The schemas of the hot routes are generated from the structs that decode and encode their messages, so the
document cannot contradict the code.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from abound.api.problems import INTERNAL, KINDS, PROBLEM_JSON, Problem
from abound.api.schemas.challengers import EnterRequest
from abound.api.schemas.labels import ChangesRequest, MergeRequest, RegisterRequest, RenameRequest
from abound.api.schemas.learn_classify import (
    FEATURES_SCHEMA,
    ClassifyAnswer,
    ClassifyBatchAnswer,
    ClassifyRequest,
    LearnAnswer,
    LearnBatchAnswer,
    LearnRequest,
)
from abound.api.schemas.models import ConfigShape
from abound.api.schemas.versions import ActivateRequest
from abound.jobs.submission import JobRequest
from abound.security.guard import requirement_of
from abound_core.config import AnalyzerConfig, DecideConfig, ModelConfig
from abound_core.limits import MODEL_NAME, Limits

REF = "#/components/schemas/{name}"
JSON = "application/json"
NDJSON = "application/x-ndjson"

FEEDBACK = ("labels", "rejected", "ignored", "weight")  # fields of an instance to learn that a batch has none of

STATUS_DESCRIPTIONS = {
    400: "The body is not JSON.",
    401: "The request has no API key, or the key is not valid.",
    403: "The key lacks the scope, or is limited to other models.",
    404: "No such model, version, prediction or snapshot.",
    405: "The path answers other methods; see `Allow`.",
    409: "The request conflicts with the current state of the model.",
    413: "A size limit is exceeded.",
    415: "Unsupported media type.",
    422: "A field is not valid; `field` names it.",
    429: "A rate limit is exceeded; see `Retry-After`.",
    500: "Internal error.",
    503: "The service cannot answer now; see `Retry-After`.",
    504: "The outcome is unknown. Retry with the same Idempotency-Key.",
    507: "The memory limit is exceeded.",
}

TAGS = [
    {"name": "learner", "description": "Learn instances and rank labels."},
    {"name": "models", "description": "Models, their labels and statistics; export and import."},
    {"name": "versions", "description": "Fitted versions: compare, activate, let challengers compete."},
    {"name": "jobs", "description": "Background work: fits, and replacements of the index."},
    {"name": "datasets", "description": "Uploaded files that jobs can learn from."},
    {"name": "snapshots", "description": "Stored states of a model."},
    {"name": "keys", "description": "API keys and the audit log."},
    {"name": "health", "description": "Probes and metrics."},
]
"""The groups of routes, in the order of the page ``/docs``."""

KEY_DESCRIPTION = "Required once a key exists (`abound keys create`). `admin` includes the other scopes."

REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "1 to 128 printable characters; returned with the answer.",
    "schema": {"type": "string"},
}
MODEL = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": MODEL_NAME},
    "example": "default",
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Covers a single or a batch request as a whole. A repeat with the same body returns the first "
    "answer and learns nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]{1,255}$"},
}

CLASSIFY_EXAMPLES = {
    "features": {"value": {"features": {"wheat": 0.4, "price": 3, "country": "FI"}, "k": 3}},
    "text": {"value": {"text": "wheat prices rise", "explain": True}},
    "batch": {"value": {"instances": [{"text": "wheat prices rise"}, {"features": {"oil": 1}}], "k": 1}},
}
LEARN_EXAMPLES = {
    "features": {"value": {"features": {"wheat": 0.4, "price": 3, "country": "FI"}, "labels": ["grain"]}},
    "text": {"value": {"text": "wheat prices rise", "labels": ["grain", "wheat"]}},
    "batch": {"value": {"instances": [{"text": "wheat prices rise", "labels": ["grain"]}]}},
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    schema = {"$ref": REF.format(name="Problem")}
    return {
        status: {"description": STATUS_DESCRIPTIONS[status], "content": {PROBLEM_JSON.decode(): {"schema": schema}}}
        for status in statuses
    }


def json_body(schema: str | dict[str, Any], required: bool = True, **examples: Any) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that takes JSON, of a schema or the name of one in the document."""
    found = {"$ref": REF.format(name=schema)} if isinstance(schema, str) else schema
    return {"requestBody": {"required": required, "content": {JSON: {"schema": found} | examples}}}


def config_schema(update: str | None = None) -> dict[str, Any]:
    """Return the schema of a configuration in a request: every field, all optional, with the service's defaults."""
    schema = ConfigShape.model_json_schema()
    parts = schema.pop("$defs")
    analyzer, decide = parts["AnalyzerShape"], parts["DecideShape"]
    parts["EncoderShape"]["required"].remove("dimension")
    analyzer["properties"]["embed"]["anyOf"][1] = parts["EncoderShape"]
    schema["properties"] |= {"analyzer": analyzer, "decide": {"anyOf": [decide, {"type": "null"}]}}
    schema["anyOf"] = [
        {"properties": {"update": {"const": "sls"}, "memory": {"type": "null"}}},
        {
            "properties": {
                "update": {"const": "fsu"},
                "rows": {"const": False},
                "rerank": {"enum": [False, None]},
                "known": {"const": False},
                "recovery": {"const": 0},
                "analyzer": {"properties": {"embed": {"type": "null"}, "embed_field": {"type": "null"}}},
            }
        },
    ]
    for part, kind in ((schema, ModelConfig), (analyzer, AnalyzerConfig), (decide, DecideConfig)):
        del part["required"]
        for field in fields(kind):
            if field.name != "analyzer":
                part["properties"][field.name]["default"] = field.default
    if update is not None:
        schema["properties"]["update"]["default"] = update
    return schema


def document(app: FastAPI) -> dict[str, Any]:
    whole = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=TAGS,
    )
    shapes = (ClassifyRequest, ClassifyAnswer, ClassifyBatchAnswer, LearnRequest, LearnAnswer, LearnBatchAnswer)
    _, schemas = msgspec.json.schema_components(
        (
            *(*shapes, RegisterRequest, RenameRequest, MergeRequest, ChangesRequest),
            *(ActivateRequest, EnterRequest, JobRequest, Problem),
        ),
        ref_template=REF,
    )
    settings = app.state.parts.settings
    _add_constraints(schemas, settings.group(Limits), settings.max_batch)
    whole.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    for path in ("/classify", "/models/{model}/classify"):
        whole["paths"][path] = {"post": _classify(path)}
    for path in ("/learn", "/models/{model}/learn"):
        whole["paths"][path] = {"post": _learn(path)}
    body = whole["paths"]["/models/{model}"]["put"]["requestBody"]["content"][JSON]
    body["schema"] = config_schema(settings.default_update)
    whole["paths"] = dict(sorted(whole["paths"].items()))
    _add_security(whole)
    return whole


def _add_security(whole: dict[str, Any]) -> None:
    """Add the required scope to each operation; no key is required while none exists."""
    whole["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": KEY_DESCRIPTION}
    }
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            need = requirement_of(method.upper(), path)
            if need is None:
                continue
            operation["security"] = [{}, {"key": [*need.scopes]}]
            for status, response in problems(401, 403).items():
                operation["responses"].setdefault(str(status), response)


def _classify(path: str) -> dict[str, Any]:
    return {
        "tags": ["learner"],
        "summary": "Rank the classes for an instance",
        "description": "One instance, a batch (`instances`), or NDJSON: one instance per line in, one answer per line "
        "out, in order. An invalid line is answered with a problem and does not stop the rest.",
        "operationId": _operation_id("classify", path),
        "parameters": [*_model(path), REQUEST_ID],
        "requestBody": _body("ClassifyRequest", CLASSIFY_EXAMPLES),
        "responses": _responses(
            {"200": ("Labels, best first.", ["ClassifyAnswer", "ClassifyBatchAnswer"])},
            (400, 404, 413, 415, 422, 429, 500, 503),
        ),
    }


def _learn(path: str) -> dict[str, Any]:
    return {
        "tags": ["learner"],
        "summary": "Learn a labelled instance",
        "description": "One instance, a batch (`instances`; learned whole or not at all), or NDJSON, where each line "
        "is independent. After an error nothing is learned, except with 504.",
        "operationId": _operation_id("learn", path),
        "parameters": [*_model(path), IDEMPOTENCY_KEY, REQUEST_ID],
        "requestBody": _body("LearnRequest", LEARN_EXAMPLES),
        "responses": _responses(
            {
                "200": ("Durable and applied.", ["LearnAnswer", "LearnBatchAnswer"]),
                "202": ("Durable, but not applied yet.", ["LearnAnswer", "LearnBatchAnswer"]),
            },
            (400, 404, 409, 413, 415, 422, 429, 500, 503, 504, 507),
        ),
    }


def _operation_id(name: str, path: str) -> str:
    return name if "{" not in path else f"{name}_with_model"


def _model(path: str) -> list[dict[str, Any]]:
    return [MODEL] if "{model}" in path else []


def _body(name: str, examples: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": REF.format(name=name)}
    return {
        "required": True,
        "content": {
            JSON: {"schema": schema, "examples": examples},
            NDJSON: {"schema": {"type": "string"}, "example": "\n".join(_lines(examples)) + "\n"},
        },
    }


def _lines(examples: dict[str, Any]) -> list[str]:
    return [
        msgspec.json.encode(example["value"]).decode()
        for example in examples.values()
        if "instances" not in example["value"]
    ]


def _responses(good: dict[str, tuple[str, list[str]]], bad: tuple[int, ...]) -> dict[str, Any]:
    header = {"X-Request-Id": {"schema": {"type": "string"}, "description": "The id of this request."}}
    responses: dict[str, Any] = {}
    for status, (description, names) in good.items():
        schema = {"anyOf": [{"$ref": REF.format(name=name)} for name in names]}
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if status == "200":
            content[NDJSON] = {"schema": {"type": "string"}}
        responses[status] = {"description": description, "content": content, "headers": header}
    for bad_status, response in problems(*bad).items():
        responses[str(bad_status)] = response
    return responses


def _add_constraints(schemas: dict[str, Any], limits: Limits, max_batch: int) -> None:
    """Add the constraints that the decoders enforce beyond their types."""
    for schema in schemas.values():
        schema.pop("title", None)
    for name in ("ClassifyRequest", "LearnRequest", "Instance", "LabelledInstance"):
        schemas[name]["anyOf"] = _request_forms(schemas[name]["properties"])
        schemas[name]["properties"]["features"] |= _features_constraints(limits)
    for name in ("LearnRequest", "LabelledInstance"):
        for kind in ("labels", "rejected", "ignored"):
            labels = schemas[name]["properties"][kind]["anyOf"][0]
            labels["maxItems"] = limits.max_labels
            labels["items"] = {"type": "string", "minLength": 1, "maxLength": limits.max_label_bytes}
            labels["description"] += (
                f" Each has 1 to {limits.max_label_bytes} bytes in UTF-8, and is in only one of `labels`, `rejected` "
                "and `ignored`."
            )
    for name in ("ClassifyRequest", "LearnRequest"):
        schemas[name]["properties"]["instances"]["anyOf"][0]["maxItems"] = max_batch
    for name, field in (("RegisterRequest", "labels"), ("MergeRequest", "from"), ("ChangesRequest", "changes")):
        schemas[name]["properties"][field]["maxItems"] = max_batch
    from abound.jobs.methods import METHODS  # imports all batch methods; a replica starts without them

    job = schemas["JobRequest"]["properties"]
    job["method"]["enum"] = sorted(METHODS)
    job["model"]["pattern"] = job["data"]["pattern"] = MODEL_NAME
    kinds = [*KINDS.values(), INTERNAL]
    schemas["Problem"]["properties"]["type"]["enum"] = [f"/problems/{kind.slug}" for kind in kinds]


def _features_constraints(limits: Limits) -> dict[str, Any]:
    """Return what the schema of features gets from the limits of the service."""
    value = {"type": "string", "maxLength": max(0, limits.max_key_bytes - len("a="))}
    return {
        "propertyNames": {"minLength": 1, "maxLength": limits.max_key_bytes, "pattern": r"^[^\u0000]"},
        "additionalProperties": {
            "anyOf": [{"type": "number"}, value, {"type": "boolean"}, {"type": "array", "items": value}]
        },
        "description": f"{FEATURES_SCHEMA['description']} A name, and `name=string`, has at most "
        f"{limits.max_key_bytes} bytes in UTF-8. At most {limits.max_features} features of an instance are active, "
        "including the words of its text.",
    }


def _request_forms(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the forms of a request, which exclude each other: an instance, a remembered one, or a batch."""
    forms = []
    kinds = {"features": "object", "text": ["string", "object"], "vector": ["array", "object"]}
    for field, kind in (kinds | {"prediction": "string", "instances": "array"}).items():
        if field not in fields:
            continue
        others = {"features", "text", "vector"} if field in ("prediction", "instances") else set()
        others |= {"vector_model"} if field != "vector" else set()
        others |= {"prediction", "instances"} | ({*FEEDBACK, "key"} if field == "instances" else set())
        absent = {other: {"type": "null"} for other in sorted(others - {field}) if other in fields}
        form: dict[str, Any] = {"required": [field], "properties": {field: {"type": kind}} | absent}
        if "labels" not in fields:
            forms.append(form)
            continue
        form["properties"]["none"] = {"const": False}
        not_partial = form["properties"] | {"partial": {"const": False}}
        if field == "instances":
            forms.append(form | {"properties": not_partial})
            continue
        empty = {label: {"maxItems": 0} for label in ("labels", "rejected", "ignored")}
        forms.append({"required": [field, "none"], "properties": not_partial | empty | {"none": {"const": True}}})
        for label in empty:
            some = {label: {"type": "array", "minItems": 1}}
            others = form["properties"] if label == "labels" else not_partial
            forms.append({"required": [field, label], "properties": others | some})
    return forms
