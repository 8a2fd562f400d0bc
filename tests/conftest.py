"""What holds for all tests: how parameters are named, in which order tests run."""

from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

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

HEAVY = ("tests/scenarios/", "tests/documents/")

PAGE = "tests/page/"
"""Tests that share one service and one browser."""


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives the tests of a file to one process, and those of the page as well."""

    def _split_scope(self, nodeid: str) -> str:
        return PAGE if nodeid.startswith(PAGE) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse", action="store_true", help="run the tests in reverse order")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash.setdefault(COLLECTED, []).append(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the page, whose tests run one after the other; spread files that start many processes."""
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
    items.sort(key=lambda item: not item.nodeid.startswith(PAGE))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a value that does not read well in an id, as compressed bytes do, by its argument; pytest numbers them."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if isinstance(text, str) and not (text.isascii() and text.isprintable() and len(text) <= LONGEST_ID):
        return argname
    return None


pytest_plugins = ["tests.support.fixtures", "tests.support.command_line"]
