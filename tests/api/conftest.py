import pytest

from tests.support.served import Served, fresh_model


@pytest.fixture
def model(service: Served) -> str:
    return fresh_model(service)
