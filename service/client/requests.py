"""The request for each resource: its content, and whether it may be repeated. Both clients send these."""

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
"""Read timeout of an import, during which all replicas load the model."""

DATASET_SECONDS = 3900.0
"""Read timeout of a data set upload; the service aborts its check after an hour."""

ACTIVATE_SECONDS = 360.0
"""Read timeout of an activation; the service waits up to five minutes until all replicas have loaded the version."""

SNAPSHOT_SECONDS = 180.0
"""Read timeout of a snapshot request; the service waits up to two minutes."""


NUMPY_KINDS = "biufUO"
"""NumPy kinds with a JSON equivalent. Bytes and times are left out: they would be sent as something else."""


def to_builtin(value: object) -> object:
    """Return a NumPy scalar or array as a Python value. Raises TypeError if JSON has no equivalent."""
    if type(value).__module__ == "numpy":
        made = value.tolist() if value.dtype.kind in NUMPY_KINDS else value  # type: ignore[attr-defined]
        if type(made).__module__ != "numpy":
            return made
        if value.dtype.kind == "f":  # type: ignore[attr-defined]
            return value.astype("float64").tolist()  # type: ignore[attr-defined]
    raise TypeError(f"a {getattr(value, 'dtype', type(value).__name__)} cannot be sent: JSON has no such type")


encode = msgspec.json.Encoder(enc_hook=to_builtin).encode
"""Encode a line of a stream. NaN and the infinities become null, which the service refuses in an instance."""


def encode_document(body: object) -> bytes:
    """Return a document as JSON. Raises Refused for NaN or infinity, which as null would mean an absent field."""
    content = encode(body)
    if b"null" in content:
        _check_numbers(msgspec.to_builtins(body, enc_hook=to_builtin), "")
    return content


def _check_numbers(value: object, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(422, {"detail": f"a number must be finite, not {value}", "field": where})
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
        Sending it twice has the same effect as sending it once.
    once : bool
        It is sent only once, even if it fails.
    seconds : float or None
        Read timeout; None for that of the client.
    """

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str]
    repeatable: bool
    once: bool = False
    seconds: float | None = None

    def timeout(self, usual: httpx.Timeout) -> httpx.Timeout:
        """Return the timeouts of this call. The read timeout is at least that of ``usual``, the client's."""
        if self.seconds is None:
            return usual
        seconds = self.seconds if usual.read is None else max(self.seconds, usual.read)
        return httpx.Timeout(seconds, connect=usual.connect, pool=usual.pool)


def _call(method: str, path: str, body: object = None, *, repeatable: bool = True, once: bool = False) -> Call:
    content = b"" if body is None else encode_document(body)
    headers = JSON if content else {}
    return Call(method=method, path=path, content=content, headers=headers, repeatable=repeatable, once=once)


def path_segment(name: str) -> str:
    """Return a name quoted as one segment of a URL path.

    Raises
    ------
    Refused
        The name is empty, ``.`` or ``..``: the normalised path would lead to another resource.
    """
    if name in ("", ".", ".."):
        detail = f"{name!r} is not a valid name: in a URL it would lead to another resource"
        raise Refused(422, {"detail": detail})
    return quote(name, safe="")


def model_path(name: str) -> str:
    """Return the path of a model."""
    return f"/models/{path_segment(name)}"


def job_path(job_id: str) -> str:
    """Return the path of a job."""
    return f"/jobs/{path_segment(job_id)}"


def ready() -> Call:
    """Ask whether the service is ready."""
    return _call("GET", "/readyz", once=True)


def models() -> Call:
    """List all models."""
    return _call("GET", "/models")


def model(name: str) -> Call:
    """Get one model with its digest."""
    return _call("GET", model_path(name))


def stats(name: str) -> Call:
    """Get the running score of a model, its sizes and its replicas."""
    return _call("GET", f"{model_path(name)}/stats")


def labels(name: str, query: Mapping[str, Any]) -> Call:
    """List labels that a model knows."""
    return _call("GET", f"{model_path(name)}/labels{_query(query)}")


def label(name: str, label: str, query: Mapping[str, Any]) -> Call:
    """Get one label with the features that vote for it."""
    return _call("GET", f"{model_path(name)}/label{_query({'name': label, **query})}")


def configure(name: str, fields: Answer) -> Call:
    """Create a model, or change its configuration."""
    return _call("PUT", model_path(name), fields)


def delete(name: str) -> Call:
    """Delete a model."""
    return _call("DELETE", model_path(name), repeatable=False)


def snapshots(name: str) -> Call:
    """List the snapshots of a model."""
    return _call("GET", f"{model_path(name)}/snapshots")


def snapshot(name: str) -> Call:
    """Request a snapshot."""
    return replace(_call("POST", f"{model_path(name)}/snapshots", repeatable=False), seconds=SNAPSHOT_SECONDS)


def versions(name: str) -> Call:
    """List the versions of a model."""
    return _call("GET", f"{model_path(name)}/versions")


def version_path(name: str, version: str) -> str:
    """Return the path of a version."""
    return f"{model_path(name)}/versions/{path_segment(version)}"


def version(name: str, version: str) -> Call:
    """Get one version."""
    return _call("GET", version_path(name, version))


def compare_versions(name: str, ids: Sequence[str]) -> Call:
    """Compare versions."""
    return _call("GET", f"{model_path(name)}/comparison?{urlencode([('id', one) for one in ids])}")


def delete_version(name: str, version: str) -> Call:
    """Delete a version."""
    return _call("DELETE", version_path(name, version), repeatable=False)


def activate(name: str, version: str, reason: str) -> Call:
    """Activate a version. Repeating the request changes nothing."""
    call = _call("POST", f"{model_path(name)}/activate", {"version": version, "reason": reason})
    return replace(call, seconds=ACTIVATE_SECONDS)


def contenders_path(name: str) -> str:
    """Return the path of a model's challengers."""
    return f"{model_path(name)}/contenders"


def contender_path(name: str, version: str) -> str:
    """Return the path of a challenger."""
    return f"{contenders_path(name)}/{path_segment(version)}"


def contenders(name: str) -> Call:
    """List the challengers and the standings of the contest."""
    return _call("GET", contenders_path(name))


def enter_contender(name: str, version: str, reason: str) -> Call:
    """Enter a version as a challenger. Repeating the request changes nothing."""
    return _call("POST", contenders_path(name), {"version": version, "reason": reason})


def leave_contest(name: str, version: str) -> Call:
    """Withdraw a version from the contest."""
    return _call("DELETE", contender_path(name, version), repeatable=False)


def datasets() -> Call:
    """List the data sets."""
    return _call("GET", "/datasets")


def dataset_path(name: str) -> str:
    """Return the path of a data set."""
    return f"/datasets/{path_segment(name)}"


def dataset(name: str) -> Call:
    """Get one data set."""
    return _call("GET", dataset_path(name))


def delete_dataset(name: str) -> Call:
    """Delete a data set."""
    return _call("DELETE", dataset_path(name), repeatable=False)


def methods() -> Call:
    """List the methods of jobs."""
    return _call("GET", "/methods")


def submit(request: Answer, key: str | None = None) -> Call:
    """Submit a job with an idempotency key, so that repeating the request submits no second job.

    Raises ValueError if the key cannot stand in a header.
    """
    if key and not (key.isascii() and key.isprintable()):
        raise ValueError("an idempotency key must be printable ASCII")
    headers = {**JSON, KEY_HEADER: key or uuid.uuid4().hex}
    return Call(method="POST", path="/jobs", content=encode_document(request), headers=headers, repeatable=True)


def jobs(query: Mapping[str, Any]) -> Call:
    """List jobs, newest first."""
    return _call("GET", f"/jobs{_query(query)}")


def job(job_id: str) -> Call:
    """Get one job."""
    return _call("GET", job_path(job_id))


def cancel(job_id: str) -> Call:
    """Cancel a job."""
    return _call("DELETE", job_path(job_id))


def classify(name: str, request: Mapping[str, Any]) -> Call:
    """Classify one instance or a batch."""
    return _call("POST", f"{model_path(name)}/classify", request)


def learn(name: str, request: Mapping[str, Any]) -> Call:
    """Learn one instance or a batch.

    A request without an idempotency key gets one, so that it can be repeated if its answer breaks off. A request that
    waits only for the log gets none: with a key, the service would answer only once the request is applied.
    """
    path = f"{model_path(name)}/learn"
    instances = request.get("instances")
    keys = [one.get("key") for one in instances] if isinstance(instances, list) else [request.get("key")]
    if any(keys) or request.get("wait") == "log":
        return _call("POST", path, request, repeatable=all(keys))
    headers = {**JSON, KEY_HEADER: uuid.uuid4().hex}
    return Call(method="POST", path=path, content=encode_document(request), headers=headers, repeatable=True)


def _query(query: Mapping[str, Any]) -> str:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return f"?{given}" if given else ""
