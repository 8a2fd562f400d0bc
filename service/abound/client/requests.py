"""Requests: their content, paths and timeouts."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec
from anyio import to_thread

from abound.client.errors import Refused

KEY_HEADER = "Idempotency-Key"
JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
MODEL_FILE = {"Content-Type": "application/vnd.abound.model"}
VERSION_FILE = {"Content-Type": "application/vnd.abound.version"}
DATA_FILE = {"Content-Type": "application/octet-stream"}

IMPORT_SECONDS = 900.0  # read timeout, while all replicas load the model
DATASET_SECONDS = 3900.0  # read timeout; the service aborts its check after an hour
ACTIVATE_SECONDS = (
    360.0  # read timeout; the service waits up to five minutes until all replicas have loaded the version
)
SNAPSHOT_SECONDS = 180.0  # read timeout; the service waits up to two minutes


FILE_PIECE_BYTES = 2**20  # size of the pieces of a file
NUMPY_KINDS = "biufUO"  # kinds with a JSON equivalent; bytes and times would be sent as something else


def to_builtin(value: object) -> object:
    """Return a NumPy scalar or array as a Python value. Raises TypeError if JSON has no equivalent."""
    if type(value).__module__ == "numpy":
        made = value.tolist() if value.dtype.kind in NUMPY_KINDS else value  # type: ignore[attr-defined]
        if type(made).__module__ != "numpy":
            return made
        if value.dtype.kind == "f":  # type: ignore[attr-defined]
            return value.astype("float64").tolist()  # type: ignore[attr-defined]
    raise TypeError(f"a {getattr(value, 'dtype', type(value).__name__)} cannot be sent: JSON has no such type")


def encode_vector(vector: Any) -> Any:
    """Return a NumPy vector of float32 or int8 as the object that the service takes; anything else as it is."""
    name = str(getattr(vector, "dtype", ""))
    if name not in ("float32", "int8") or vector.ndim != 1:
        return vector
    data = vector.astype(vector.dtype.newbyteorder("<")).tobytes()
    return {"base64": base64.b64encode(data).decode("ascii"), "dtype": name}


_encode = msgspec.json.Encoder(enc_hook=to_builtin).encode


def encode(body: object) -> bytes:
    """Return JSON, with null for NaN and the infinities, and with the escape of half of a surrogate pair."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(body, enc_hook=to_builtin)).encode()


def encode_document(body: object) -> bytes:
    """Return a document as JSON. Raises Refused for infinity, and NaN where null would not be a missing value."""
    content = encode(body)
    if b"null" in content:
        _check_numbers(msgspec.to_builtins(body, enc_hook=to_builtin), "")
    return content


_MAY_BE_NAN = re.compile(r"(?:instances\[\d+\]\.)?(?:features\.|(?:labels|rejected|ignored)\[)")


def _check_numbers(value: object, where: str) -> None:
    if isinstance(value, float) and not (math.isfinite(value) or (math.isnan(value) and _MAY_BE_NAN.match(where))):
        raise Refused(422, {"detail": f"a number must be finite, not {value}", "field": where})
    if isinstance(value, Mapping):
        for name, one in value.items():
            _check_numbers(one, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            _check_numbers(one, f"{where}[{i}]")


@dataclass(frozen=True, slots=True)
class Call:
    """A request with one document as its answer.

    Attributes
    ----------
    content : bytes, or an iterable or async iterable of bytes
        Pieces can be sent only once.
    repeatable : bool
        Sending it twice has the same effect as sending it once.
    once : bool
        It is sent only once, even if it fails.
    seconds : float or None
        Read timeout; None for that of the client.
    """

    method: str
    path: str
    content: Any = b""
    headers: Mapping[str, str] | None = None
    repeatable: bool = True
    once: bool = False
    seconds: float | None = None

    def timeout(self, usual: httpx.Timeout) -> httpx.Timeout:
        """Return the timeouts of this call. The read timeout is at least that of ``usual``, the client's."""
        if self.seconds is None:
            return usual
        seconds = self.seconds if usual.read is None else max(self.seconds, usual.read)
        return httpx.Timeout(seconds, connect=usual.connect, pool=usual.pool)


async def pass_trace_on(request: httpx.Request) -> None:
    """Put the current trace of the application into a request, as ``traceparent``, if it uses OpenTelemetry."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(request.headers)


def read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_PIECE_BYTES):
            yield piece


async def in_thread(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces; each is taken in a thread, so that a slow source does not hold the event loop."""
    source = iter(pieces)
    while (piece := await to_thread.run_sync(next, source, None)) is not None:
        yield piece


def path_segment(name: str) -> str:
    """Return a name quoted as one segment. Raise Refused for one that would lead to another resource."""
    if name in ("", ".", ".."):
        detail = f"{name!r} is not a valid name: in a URL it would lead to another resource"
        raise Refused(422, {"detail": detail})
    return quote(name, safe="")


def model_path(name: str) -> str:
    return f"/models/{path_segment(name)}"


def version_path(name: str, version: str) -> str:
    return f"{model_path(name)}/versions/{path_segment(version)}"


def challengers_path(name: str) -> str:
    return f"{model_path(name)}/challengers"


def challenger_path(name: str, version: str) -> str:
    return f"{challengers_path(name)}/{path_segment(version)}"


def dataset_path(name: str) -> str:
    return f"/datasets/{path_segment(name)}"


def job_path(job: str | Mapping[str, Any]) -> str:
    return f"/jobs/{path_segment(job if isinstance(job, str) else job['id'])}"


def query_string(**query: object) -> str:
    """Return a query string of the values that are not None, with its question mark. A list gives repeated names."""
    given = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
    return f"?{given}" if given else ""
