"""What holds for all tests: how parameters are named, in which order tests run."""

from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests import randomness

settings.load_profile(randomness.QUICK)

_configure = structlog.configure


def configure_uncached(**options: Any) -> None:
    """Configure logging so that ``structlog.testing.capture_logs`` also sees loggers that earlier tests have used."""
    _configure(**options | {"cache_logger_on_first_use": False})


structlog.configure = configure_uncached  # type: ignore[assignment]

COLLECTED = pytest.StashKey[list[str]]()
"""The ids of all tests that were collected, before any is left out by ``-m`` or ``-k``."""

LONGEST_ID = 80

HEAVY = ("tests/scenarios/", "tests/page/", "tests/documents/")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse", action="store_true", help="run the tests in reverse order")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash.setdefault(COLLECTED, []).append(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the files that start many processes among the others."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    heavy = [name for name in files if name.startswith(HEAVY)]
    light = [name for name in files if not name.startswith(HEAVY)]
    shares = [light[len(light) * i // len(heavy) : len(light) * (i + 1) // len(heavy)] for i in range(len(heavy))]
    names = [name for one, others in zip(heavy, shares, strict=True) for name in (one, *others)] or light
    items[:] = [item for name in names for item in files[name]]
    if config.getoption("reverse"):
        items.reverse()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a value that does not read well in an id, as compressed bytes do, by its argument; pytest numbers them."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if isinstance(text, str) and not (text.isascii() and text.isprintable() and len(text) <= LONGEST_ID):
        return argname
    return None


pytest_plugins = ["tests.support.fixtures", "tests.support.command_line"]
