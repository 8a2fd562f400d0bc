"""One call a resource: what is sent, and whether it may be sent twice. Both clients send these."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from abound.service.client.errors import Answer, Refused

KEY_HEADER = "Idempotency-Key"
JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
MODEL_FILE = {"Content-Type": "application/vnd.abound.model"}
VERSION_FILE = {"Content-Type": "application/vnd.abound.version"}
DATA_FILE = {"Content-Type": "application/octet-stream"}

IMPORT_SECONDS = 900.0
"""Longest silence while a model is imported: all replicas load it."""

DATASET_SECONDS = 3900.0
"""The same while a data set is checked: the service gives that up after an hour."""

ACTIVATE_SECONDS = 360.0
"""The same while a version is activated: the service waits five minutes for all replicas to have loaded it."""

SNAPSHOT_SECONDS = 180.0
"""The same while a snapshot is made: the service waits two minutes."""


NUMPY_KINDS = "biufUO"
"""Types of numpy that are the same in JSON: not bytes, nor times, which would be sent as other things than they are."""


def plain(value: object) -> object:
    """A scalar or an array of numpy as what it is in Python; TypeError for what there is no JSON for."""
    if type(value).__module__ == "numpy":
        made = value.tolist() if value.dtype.kind in NUMPY_KINDS else value  # type: ignore[attr-defined]
        if type(made).__module__ != "numpy":
            return made
        if value.dtype.kind == "f":  # type: ignore[attr-defined]
            return value.astype("float64").tolist()  # type: ignore[attr-defined]
    raise TypeError(f"a {getattr(value, 'dtype', type(value).__name__)} cannot be sent: there is no JSON for it")


encode = msgspec.json.Encoder(enc_hook=plain).encode
"""A line of a stream; what is no number in it is null, which the service refuses in an instance."""


def encode_whole(body: object) -> bytes:
    """A document; Refused where a number in it is none to JSON: sent as null it would say that nothing is asked."""
    content = encode(body)
    if b"null" in content:
        _check_numbers(msgspec.to_builtins(body, enc_hook=plain), "")
    return content


def _check_numbers(value: object, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(422, {"detail": f"a number has to be finite, not {value}", "field": where})
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_numbers(one, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            _check_numbers(one, f"{where}[{i}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request with one document as its answer.

    Attributes
    ----------
    repeatable : bool
        Taking it twice does what taking it once does.
    once : bool
        The first answer counts, whatever it is.
    seconds : float or None
        Longest silence; None: that of the client.
    """

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str]
    repeatable: bool
    once: bool = False
    seconds: float | None = None

    def timeout(self, usual: httpx.Timeout) -> httpx.Timeout:
        """What may be waited for, where the client's is ``usual``; never less."""
        if self.seconds is None:
            return usual
        seconds = self.seconds if usual.read is None else max(self.seconds, usual.read)
        return httpx.Timeout(seconds, connect=usual.connect, pool=usual.pool)


def _call(method: str, path: str, body: object = None, *, repeatable: bool = True, once: bool = False) -> Call:
    content = b"" if body is None else encode_whole(body)
    headers = JSON if content else {}
    return Call(method=method, path=path, content=content, headers=headers, repeatable=repeatable, once=once)


def part(name: str) -> str:
    """A name as one part of a path.

    Raises
    ------
    Refused
        It is empty, ``.`` or ``..``: a path with it is the path of something else, once it is normalised.
    """
    if name in ("", ".", ".."):
        detail = f"{name!r} is no name: in an address it would stand for something else"
        raise Refused(422, {"detail": detail})
    return quote(name, safe="")


def model_path(name: str) -> str:
    """Where a model is."""
    return f"/models/{part(name)}"


def job_path(job_id: str) -> str:
    """Where a job is."""
    return f"/jobs/{part(job_id)}"


def ready() -> Call:
    """What ``/readyz`` says."""
    return _call("GET", "/readyz", once=True)


def models() -> Call:
    """All models."""
    return _call("GET", "/models")


def model(name: str) -> Call:
    """One model with its digest."""
    return _call("GET", model_path(name))


def stats(name: str) -> Call:
    """The running score of a model, its sizes, and its replicas."""
    return _call("GET", f"{model_path(name)}/stats")


def labels(name: str, query: Mapping[str, Any]) -> Call:
    """Labels that a model knows."""
    return _call("GET", f"{model_path(name)}/labels{_query(query)}")


def label(name: str, label: str, query: Mapping[str, Any]) -> Call:
    """One label, and the features that vote for it."""
    return _call("GET", f"{model_path(name)}/label{_query({'name': label, **query})}")


def configure(name: str, fields: Answer) -> Call:
    """Create a model, or change its configuration."""
    return _call("PUT", model_path(name), fields)


def delete(name: str) -> Call:
    """Delete a model."""
    return _call("DELETE", model_path(name), repeatable=False)


def snapshots(name: str) -> Call:
    """The snapshots of a model."""
    return _call("GET", f"{model_path(name)}/snapshots")


def snapshot(name: str) -> Call:
    """Ask for a snapshot."""
    return replace(_call("POST", f"{model_path(name)}/snapshots", repeatable=False), seconds=SNAPSHOT_SECONDS)


def versions(name: str) -> Call:
    """The versions of a model."""
    return _call("GET", f"{model_path(name)}/versions")


def version_path(name: str, version: str) -> str:
    """Where a version of a model is."""
    return f"{model_path(name)}/versions/{part(version)}"


def version(name: str, version: str) -> Call:
    """One version."""
    return _call("GET", version_path(name, version))


def compare_versions(name: str, ids: Sequence[str]) -> Call:
    """Versions side by side."""
    return _call("GET", f"{model_path(name)}/comparison?{urlencode([('id', one) for one in ids])}")


def delete_version(name: str, version: str) -> Call:
    """Delete a version."""
    return _call("DELETE", version_path(name, version), repeatable=False)


def activate(name: str, version: str, reason: str) -> Call:
    """Let a version answer; again it changes nothing."""
    call = _call("POST", f"{model_path(name)}/activate", {"version": version, "reason": reason})
    return replace(call, seconds=ACTIVATE_SECONDS)


def contenders_path(name: str) -> str:
    """Where the contest of a model is."""
    return f"{model_path(name)}/contenders"


def contender_path(name: str, version: str) -> str:
    """Where a version is that contends."""
    return f"{contenders_path(name)}/{part(version)}"


def contenders(name: str) -> Call:
    """Who contends, and how it stands."""
    return _call("GET", contenders_path(name))


def enter_contender(name: str, version: str, reason: str) -> Call:
    """Let a version contend; again it changes nothing."""
    return _call("POST", contenders_path(name), {"version": version, "reason": reason})


def leave_contest(name: str, version: str) -> Call:
    """Let a version contend no more."""
    return _call("DELETE", contender_path(name, version), repeatable=False)


def datasets() -> Call:
    """The data sets."""
    return _call("GET", "/datasets")


def dataset_path(name: str) -> str:
    """Where a data set is."""
    return f"/datasets/{part(name)}"


def dataset(name: str) -> Call:
    """One data set."""
    return _call("GET", dataset_path(name))


def delete_dataset(name: str) -> Call:
    """Delete a data set."""
    return _call("DELETE", dataset_path(name), repeatable=False)


def methods() -> Call:
    """What jobs can do."""
    return _call("GET", "/methods")


def submit(request: Answer, key: str | None = None) -> Call:
    """Ask for a job, under a key: however often it is sent, it is taken once. ValueError for one that cannot travel."""
    if key and not (key.isascii() and key.isprintable()):
        raise ValueError("an idempotency key has to be printable ASCII")
    headers = {**JSON, KEY_HEADER: key or uuid.uuid4().hex}
    return Call(method="POST", path="/jobs", content=encode_whole(request), headers=headers, repeatable=True)


def jobs(query: Mapping[str, Any]) -> Call:
    """Jobs, newest first."""
    return _call("GET", f"/jobs{_query(query)}")


def job(job_id: str) -> Call:
    """One job."""
    return _call("GET", job_path(job_id))


def cancel(job_id: str) -> Call:
    """Cancel a job."""
    return _call("DELETE", job_path(job_id))


def classify(name: str, request: Mapping[str, Any]) -> Call:
    """Rank one instance, or a batch."""
    return _call("POST", f"{model_path(name)}/classify", request)


def learn(name: str, request: Mapping[str, Any]) -> Call:
    """Learn one instance, or a batch.

    A request without an idempotency key gets one, so that it can be sent again when its answer breaks off. One that
    waits for the log only gets none: a key would make it wait until it is applied.
    """
    path = f"{model_path(name)}/learn"
    instances = request.get("instances")
    keys = [one.get("key") for one in instances] if isinstance(instances, list) else [request.get("key")]
    if any(keys) or request.get("wait") == "log":
        return _call("POST", path, request, repeatable=all(keys))
    headers = {**JSON, KEY_HEADER: uuid.uuid4().hex}
    return Call(method="POST", path=path, content=encode_whole(request), headers=headers, repeatable=True)


def _query(query: Mapping[str, Any]) -> str:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return f"?{given}" if given else ""
