"""The registry of batch methods: everything that the command line, jobs, artifacts and contract tests know of them.

A method is a module with these names:

- ``Params``: a frozen dataclass that validates itself, raising ValueError with the field's name;
- ``fit(data, params, rng, progress) -> Model``;
- ``COST`` and ``USE``: sentences;
- optional: ``check(data, params)``, which raises ValueError before the fit for data that the method does not support;
- optional: ``search(data, rng, progress) -> Params``, which chooses parameters;
- optional: ``IDF`` = False, if idf weights do not suit the method.

A ``Model`` has frozen arrays, ``rank(X, k) -> Rankings``, ``to_arrays()`` and ``from_arrays(arrays, d, n_labels)``.
The latter checks all arrays (``abound_core/methods/training/array_checks.py``) and raises Corrupted. ``facts()`` is
optional and returns additional figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from abound_core.errors import InvalidInstance, did_you_mean
from abound_core.measures import Rankings
from abound_core.methods.embeddings import exmlds1, exmlds2, exmlds3, exmlds_joint, rembrandt
from abound_core.methods.index import feature_focus, frequency, ind, unweighted
from abound_core.methods.linear import one_vs_rest, top_down, xr_linear
from abound_core.methods.neighbors import ogeec, swnn
from abound_core.methods.training.matrices import Csr, Matrices
from abound_core.methods.training.progress import Progress, subrange

Arrays = Mapping[str, npt.NDArray[Any]]


class Model(Protocol):
    """The result of fitting any method."""

    def rank(self, X: Csr, k: int) -> Rankings:
        """Rank the best ``k`` labels of each row, or fewer; equal scores by label id."""
        ...

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]: ...


Fit = Callable[[Matrices, Any, np.random.Generator, Progress], Model]
Search = Callable[[Matrices, np.random.Generator, Progress], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method as other packages see it; see the module docstring."""

    params: type[Any]
    fit: Fit
    load: Callable[[Arrays, int, int], Model]
    check: Callable[[Matrices, Any], None]
    search: Search | None
    idf: bool
    cost: str
    use: str

    @classmethod
    def from_module(cls, module: ModuleType) -> Method:
        return cls(
            params=module.Params,
            fit=module.fit,
            load=module.Model.from_arrays,
            check=getattr(module, "check", _take_all),
            search=getattr(module, "search", None),
            idf=getattr(module, "IDF", True),
            cost=module.COST,
            use=module.USE,
        )


def _take_all(data: Matrices, params: Any) -> None:
    """Accept any data with something to learn; the default check."""


METHODS: dict[str, Method] = {
    "ff": Method.from_module(feature_focus),
    "ind": Method.from_module(ind),
    "unweighted": Method.from_module(unweighted),
    "frequency": Method.from_module(frequency),
    "swnn": Method.from_module(swnn),
    "ogeec": Method.from_module(ogeec),
    "rembrandt": Method.from_module(rembrandt),
    "exmlds1": Method.from_module(exmlds1),
    "exmlds2": Method.from_module(exmlds2),
    "exmlds3": Method.from_module(exmlds3),
    "exmlds_joint": Method.from_module(exmlds_joint),
    "one_vs_rest": Method.from_module(one_vs_rest),
    "top_down": Method.from_module(top_down),
    "xr_linear": Method.from_module(xr_linear),
}


def method_of(name: str) -> Method:
    """Return the method of this name. Raises InvalidInstance if there is none."""
    if name not in METHODS:
        raise InvalidInstance(
            f"there is no method {name}; the methods are {', '.join(METHODS)}{did_you_mean(name, METHODS)}", "method"
        )
    return METHODS[name]


def params_of(name: str, plain: Mapping[str, Any]) -> Any:
    """Build the parameters of a method. Raises InvalidInstance with the field if one is unknown or out of range."""
    method = method_of(name)
    known = [field.name for field in fields(method.params)]
    for field in plain:
        if field not in known:
            listed = f"its parameters are {', '.join(known)}" if known else "it has none"
            raise InvalidInstance(f"{field} is not a parameter of {name}; {listed}{did_you_mean(field, known)}", field)
    try:
        return method.params(**plain)
    except ValueError as error:
        raise _refused(error) from error


def fit(
    name: str,
    data: Matrices,
    params: Any,
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Model, Any]:
    """Check the requirements and fit a method; return the model and the parameters used.

    Rows without a label or without an active feature are left out. ``auto`` parameters are chosen on a held-out part.
    ``rng`` determines everything random, whatever the number of threads. Raises InvalidInstance if the data have
    nothing to learn, or do not suit the method.
    """
    method = method_of(name)
    rows = data.learnable
    if not data.X.shape[0]:
        raise InvalidInstance("there are no instances", "data")
    if not data.Y.nnz:
        raise InvalidInstance("no instance has a label", "data")
    if not len(rows):
        raise InvalidInstance("no instance has both a label and an active feature", "data")
    if len(rows) < data.X.shape[0]:
        data = data.rows(rows)
    if params == "auto":
        if method.search is None:
            raise InvalidInstance(f"{name} has no parameters that can be searched for", "params")
        params = method.search(data, rng, subrange(progress, 0.0, 0.7))
        progress = subrange(progress, 0.7, 1.0)
    try:
        method.check(data, params)
    except ValueError as error:
        raise _refused(error) from error
    return method.fit(data, params, rng, progress), params


def _refused(error: ValueError) -> InvalidInstance:
    """Return an error whose field is the first word of the message."""
    return InvalidInstance(str(error), str(error).partition(" ")[0])
