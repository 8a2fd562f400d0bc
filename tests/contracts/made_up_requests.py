"""Requests made up from the OpenAPI document, good and bad, for the service at ``SERVICE_URL``.

``test_schemathesis.py`` runs this file in a process of its own: making up the requests takes ten seconds, which every
process that collects tests would spend.
"""

import os
import re
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import CHECKS, load_all_checks

from abound.api.app import create_app
from abound.settings import Settings
from abound_core.limits import MODEL_NAME
from tests.randomness import examples

URL = os.environ["SERVICE_URL"]

load_all_checks()
# What is right by its shape may still be wrong by its sense: an offset that is not there yet, labels without an
# active feature. So that check is left out; whether a good request is taken is tried by the examples.
BY_SENSE = CHECKS.get_one("positive_data_acceptance")
BAD_IS_REFUSED = CHECKS.get_one("negative_data_rejection")
METHODS = CHECKS.get_one("unsupported_method")


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """The document calls NDJSON a string."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else str(value).encode()


@schemathesis.serializer(
    "application/vnd.abound.model",
    "application/vnd.abound.version",
    "application/vnd.apache.arrow.file",
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.parquet",
    "application/jsonl",
    "text/x-svmlight",
)
def file(context: schemathesis.SerializationContext, value: Any) -> bytes:
    given = getattr(value, "data", value)
    return given if isinstance(given, bytes) else str(given).encode("utf-8", "surrogatepass")


PRESENT = {"model": "default", "label": "grain"}
"""Path parameters that name something that is there."""


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: dict[str, Any] | None) -> Any:
    """Half of the good names are those of something that is there: behind it is most of what can go wrong."""
    for name, present in PRESENT.items():
        given = (path_parameters or {}).get(name)
        if isinstance(given, str) and re.fullmatch(MODEL_NAME, given) and len(given) % 2:
            path_parameters = {**(path_parameters or {}), name: present}
    return path_parameters


application = create_app(Settings(redis_url=SecretStr("unix:///nobody-is-asked")))
schema = schemathesis.openapi.from_dict(application.openapi())


@schema.parametrize()
@settings(
    max_examples=examples(50),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_no_request_finds_the_service_outside_its_document(case: Any) -> None:
    excluded = [BY_SENSE]
    if case.media_type == "application/x-ndjson":
        excluded.append(BAD_IS_REFUSED)  # a bad line is answered with its problem, in an answer that is good
    if "/labels/" in case.path:
        excluded.append(METHODS)  # a label may have any name, such as the end of a path
    case.call_and_validate(base_url=URL, excluded_checks=excluded, timeout=20)
