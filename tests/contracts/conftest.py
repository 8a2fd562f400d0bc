from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.served import Served, served


@pytest.fixture(scope="package")
def service() -> Iterator[Served]:
    with served(min_offset_seconds=0.1) as service:
        body = {"text": "wheat prices rise", "labels": ["grain", "wheat"]}
        service.http.post("/learn", json=body).raise_for_status()
        yield service
