"""What holds for all tests: how parameters are named, which tests start programs, in which order tests run."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests import randomness

settings.load_profile(randomness.QUICK)

_configure = structlog.configure


def configure_uncached(**options: Any) -> None:
    """Configure logging so that ``structlog.testing.capture_logs`` also sees loggers that earlier tests have used."""
    _configure(**options | {"cache_logger_on_first_use": False})


structlog.configure = configure_uncached  # type: ignore[assignment]

LONGEST_ID = 80

PAGE = "tests/page/"
FOLDERS = ("scenarios", "page", "documents", "processes", "examples", "image", "contracts")
FILES = (
    "api/test_datasets.py", "api/test_versions.py", "artifacts/test_timeouts.py", "cli/test_cli.py", "cli/test_jobs.py",
    "cli/test_learn.py", "cli/test_mcp.py", "client/test_against_service.py", "jobs/test_fit.py", "jobs/test_runner.py",
    "store/test_append_only_file.py", "test_client_distribution.py", "test_wheel.py", "test_worker.py",
)  # fmt: skip
PROCESSES = tuple(f"tests/{name}/" for name in FOLDERS) + tuple(f"tests/{name}" for name in FILES)
"""Where tests start services, workers, browsers or other programs. They get the marker ``processes``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reverse", action="store_true", help="run the tests in reverse order")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests of the other stage, since each worker imports all that is collected."""
    place = collection_path.as_posix().removeprefix(f"{config.rootpath.as_posix()}/")
    left_out = "not processes" if place.startswith(PROCESSES) else "processes"
    return (collection_path.is_file() and left_out in config.getoption("markexpr").split(" and ")) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(PROCESSES):
            item.add_marker(pytest.mark.processes)
    if config.getoption("reverse"):
        items.reverse()
    items.sort(key=lambda item: not item.nodeid.startswith(PAGE))  # what takes longest begins first


class Files(LoadFileScheduling):
    """A file is run by one worker; so are all files of the page, which share a browser and a service."""

    def _split_scope(self, nodeid: str) -> str:
        return PAGE if nodeid.startswith(PAGE) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # .ci/run runs tests without this plugin, too
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Files | None:
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a value that does not read well in an id, as compressed bytes do, by its argument; pytest numbers them."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if isinstance(text, str) and not (text.isascii() and text.isprintable() and len(text) <= LONGEST_ID):
        return argname
    return None


pytest_plugins = ["tests.support.fixtures", "tests.support.command_line"]
