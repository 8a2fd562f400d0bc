"""What holds for all tests: where compiled kernels are kept, how parameters are named, in which order tests run."""

import pytest
from hypothesis import settings

from abound.service.processes.kernel_cache import set_cache_dir
from tests import randomness

set_cache_dir()  # before any test imports numba
settings.load_profile(randomness.QUICK)

LONGEST_ID = 80

LONGEST = ("tests/scenarios/", "tests/page/", "tests/documents/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse", action="store_true", help="run the tests in reverse order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the folders that take longest, so that no process is left alone with them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    if config.getoption("reverse"):
        items.reverse()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a value that does not read well in an id, as compressed bytes do, by its argument; pytest numbers them."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if isinstance(text, str) and not (text.isascii() and text.isprintable() and len(text) <= LONGEST_ID):
        return argname
    return None


pytest_plugins = ["tests.support.fixtures"]
