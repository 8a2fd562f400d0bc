"""The parameters of a fit job: the batch method's own, and those that all methods share."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, get_type_hints

from pydantic import Field

from abound.core.methods import registry
from abound.core.methods.training import param_checks
from abound.service.settings import field_descriptions

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class FitParams:
    """Parameters of every fit.

    Attributes
    ----------
    seed : int
        Seed of all random numbers of the method.
    idf : bool or None
        Weigh features by their inverse frequency, in the training data; null: the model's ``idf`` setting, if the
        method supports it.
    auto : bool
        Search for the method's parameters on a held-out part, if the method supports it.
    held_out : float
        Fraction of the instances, the newest, that the version is evaluated on; 0: no evaluation.
    most_held_out : int
        Most instances to hold out.
    refit : bool
        Fit again on all instances after the evaluation.
    reason : str
        Reason of the job, stored with it.
    """

    METHOD: ClassVar[str] = ""

    seed: int = 0
    idf: bool | None = None
    auto: bool = False
    held_out: float = 0.1
    most_held_out: int = 5000
    refit: bool = True
    reason: str = ""

    def __post_init__(self) -> None:
        method = registry.METHODS[self.METHOD]
        param_checks.whole("seed", self.seed, 0, MOST_SEED)
        param_checks.number("held_out", self.held_out, 0.0, 0.5)
        param_checks.whole("most_held_out", self.most_held_out, 1, 1_000_000)
        if len(self.reason) > 1000:
            raise ValueError("reason must have at most 1000 characters")
        if self.idf and not method.idf:
            raise ValueError(f"idf is not supported by {self.METHOD}; leave it out or set it to false")
        if self.auto and method.search is None:
            raise ValueError(f"auto: {self.METHOD} has no parameters that can be searched for")
        if self.auto and self.method_params != method.params():
            raise ValueError("auto searches for the method's parameters; give either auto or the parameters")

    @property
    def method_params(self) -> Any:
        """The method's own parameters. Raises ValueError with a field's name if one is out of range."""
        method = registry.METHODS[self.METHOD]
        return method.params(**{one.name: getattr(self, one.name) for one in fields(method.params)})

    def uses_idf(self, default: bool) -> bool:
        """Return whether to weigh features by idf; ``default`` applies if ``idf`` is not set."""
        return registry.METHODS[self.METHOD].idf and (default if self.idf is None else self.idf)


@cache
def fit_params(method: str) -> type[FitParams]:
    """Return the parameter class of a fit by this method: a frozen, self-validating dataclass."""
    own = registry.METHODS[method].params
    hints = get_type_hints(own)
    about = field_descriptions(own)
    parts: list[tuple[str, Any, Any]] = []
    for one in fields(own):
        if hasattr(FitParams, one.name):
            raise AssertionError(f"{one.name} of {method} is also a parameter of every fit")
        default = field(default_factory=one.default_factory) if one.default is MISSING else field(default=one.default)
        parts.append((one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], default))

    def check(self: FitParams) -> None:
        _ = self.method_params
        FitParams.__post_init__(self)

    made = make_dataclass(
        f"Fit_{method}",
        [*_annotated(FitParams), *parts],
        bases=(FitParams,),
        namespace={"METHOD": method, "__post_init__": check, "__doc__": inspect.getdoc(own)},
        frozen=True,
        kw_only=True,
    )
    made.__module__ = __name__
    return made


def _annotated(kind: type[Any]) -> list[tuple[str, Any, Any]]:
    """Return the fields of a dataclass, annotated with their descriptions from its docstring."""
    about, hints = field_descriptions(kind), get_type_hints(kind)
    return [
        (one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], field(default=one.default))
        for one in fields(kind)
    ]
