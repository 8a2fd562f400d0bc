"""Abound, a self-hosted online classification service: clients, scikit-learn classifier and server.

The public names are imported on first use, which keeps the start of the command line and of the supervisor fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abound.client import AsyncClient, Client, InputInstance, Labelled, Model, Refused
    from abound.client.estimator import AboundClassifier

    __version__: str

__all__ = [
    "AboundClassifier",
    "AsyncClient",
    "Client",
    "InputInstance",
    "Labelled",
    "Model",
    "Refused",
    "__version__",
]

_MODULE_OF = dict.fromkeys(__all__, "abound.client") | {"AboundClassifier": "abound.client.estimator"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("abound")
        except PackageNotFoundError:
            return version("abound-client")
    if name in _MODULE_OF:
        try:
            return getattr(import_module(_MODULE_OF[name]), name)
        except ModuleNotFoundError as error:
            extra = "'abound[sklearn]'" if name == "AboundClassifier" else "abound"
            raise ImportError(f"{name} needs a package that is missing ({error}): pip install {extra}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
