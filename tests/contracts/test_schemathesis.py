"""Requests made up from the OpenAPI document, good and bad, against the running service.

Whatever is sent: no error of the service, no status and no media type that the document does not name for the
operation, every answer of its documented shape, and nothing that breaks the document is taken as good.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import CHECKS, load_all_checks

from core.errors import InvalidInstance, Malformed
from service.dataset_check import counts
from service.datasets import Datasets
from service.main import create_app
from service.schemas import MODEL_NAME
from service.settings import Settings
from tests.service.served import Served

load_all_checks()
# What is right by its shape may still be wrong by its sense: an offset that is not there yet, labels without an
# active feature. So that check is left out; whether a good request is taken is tried by the examples.
BY_SENSE = CHECKS.get_one("positive_data_acceptance")
BAD_IS_REFUSED = CHECKS.get_one("negative_data_rejection")


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """The document calls NDJSON a string."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else str(value).encode()


@schemathesis.serializer(
    "application/vnd.abound.model", "application/vnd.abound.version", "application/jsonl", "text/x-svmlight"
)
def file(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """A file, of any bytes."""
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


@pytest.fixture(scope="module", autouse=True)
def _checked_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Data sets are checked in this process: one for each request would take minutes."""

    async def check(self: Datasets, file: str, environment: dict[str, str]) -> dict[str, int]:
        (path,) = tmp_path_factory.getbasetemp().rglob(file)
        try:
            return await asyncio.to_thread(counts, path, 10**6)
        except Malformed as error:
            raise InvalidInstance(str(error), "body") from error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Datasets, "_counts", check)
        yield


@pytest.fixture(scope="module")
def openapi() -> Any:
    application = create_app(Settings(redis_url=SecretStr("unix:///nobody-is-asked")))
    return schemathesis.openapi.from_dict(application.openapi())


# The fixture keeps the requests from being made up while tests are collected, which took 10 seconds in every process.
schema = schemathesis.pytest.from_fixture("openapi")


@schema.parametrize()
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_no_request_finds_the_service_outside_its_document(service: Served, case: Any) -> None:
    excluded = [BY_SENSE]
    if case.media_type == "application/x-ndjson":
        excluded.append(BAD_IS_REFUSED)  # a bad line is answered with its problem, in an answer that is good
    case.call_and_validate(base_url=service.url, excluded_checks=excluded, timeout=20)
