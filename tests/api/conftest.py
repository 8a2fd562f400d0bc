"""A service for each file of tests, with the file's ``SETTINGS`` and, if it ``HAS_ARTIFACTS``, an artifact store."""

from collections.abc import Iterator

import pytest

from tests.support.served import Served, fresh_model, served


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = getattr(request.module, "SETTINGS", {})
    if getattr(request.module, "HAS_ARTIFACTS", False):
        settings = settings | {"artifacts_url": str(tmp_path_factory.mktemp("artifacts"))}
    with served(**settings) as service:
        yield service


@pytest.fixture
def model(service: Served) -> str:
    return fresh_model(service)
