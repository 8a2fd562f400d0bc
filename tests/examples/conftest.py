"""A service for the examples."""

from collections.abc import Iterator

import pytest

from tests.support.served import Served, served


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as running:
        yield running
