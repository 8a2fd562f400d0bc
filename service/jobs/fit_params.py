"""The parameters of a job that fits a batch method: the method's own, and what is common to all of them."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, get_type_hints

from pydantic import Field

from abound.core.errors import InvalidInstance
from abound.core.methods import registry
from abound.core.methods.training import param_checks

MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class FitParams:
    """What every fit is told.

    Attributes
    ----------
    seed : int
        Of everything that the method draws.
    idf : bool or None
        Weigh features by their inverse frequency in the training data; null: as the model's ``idf`` says, where the
        method has a use for it.
    auto : bool
        Search for the method's parameters on a part that is held out, where the method knows how to.
    held_out : float
        Part of the instances, the newest, that the version is judged on; 0: it is not judged.
    most_held_out : int
        Instances of it at most.
    refit : bool
        Fit once more on all instances after it was judged on a fit without the newest.
    reason : str
        Kept with the job.
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
            raise ValueError(f"idf is of no use to {self.METHOD}")
        if self.auto and method.search is None:
            raise ValueError(f"auto: {self.METHOD} has no parameters that can be searched for")
        if self.auto and self.own != method.params():
            raise ValueError("auto searches for the method's parameters, so none of them can be given")

    @property
    def own(self) -> Any:
        """The method's own parameters; ValueError with a field's name when one is out of range."""
        method = registry.METHODS[self.METHOD]
        return method.params(**{one.name: getattr(self, one.name) for one in fields(method.params)})

    def weighs(self, default: bool) -> bool:
        """Whether features are weighed; ``default``: where it is not said."""
        return registry.METHODS[self.METHOD].idf and (default if self.idf is None else self.idf)


@cache
def fit_params(method: str) -> type[FitParams]:
    """The parameters of a fit by this method, as one frozen dataclass that checks itself."""
    own = registry.METHODS[method].params
    hints = get_type_hints(own)
    about = described(own)
    parts: list[tuple[str, Any, Any]] = []
    for one in fields(own):
        if hasattr(FitParams, one.name):
            raise AssertionError(f"{one.name} of {method} is what every fit is told")
        default = field(default_factory=one.default_factory) if one.default is MISSING else field(default=one.default)
        parts.append((one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], default))

    def check(self: FitParams) -> None:
        _ = self.own
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


def checked(method: str, plain: dict[str, Any]) -> FitParams:
    """Parameters from JSON values that were checked before; InvalidInstance when they cannot be."""
    try:
        return fit_params(method)(**plain)
    except (TypeError, ValueError) as error:
        raise InvalidInstance(str(error), "params") from None


def _annotated(kind: type[Any]) -> list[tuple[str, Any, Any]]:
    """The fields of a dataclass with what its docstring says of them."""
    about, hints = described(kind), get_type_hints(kind)
    return [
        (one.name, Annotated[hints[one.name], Field(description=about.get(one.name))], field(default=one.default))
        for one in fields(kind)
    ]


def described(kind: type[Any]) -> dict[str, str]:
    """What the section *Attributes* of its docstring, or of that of a class it comes from, says of each field."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        section = inspect.cleandoc(one.__doc__ or "").partition("Attributes\n----------\n")[2]
        own: dict[str, str] = {}
        names: list[str] = []
        for line in section.splitlines():
            if line[:1].strip():
                names = re.split(r",\s*", line.partition(" : ")[0])
            elif line.strip():
                for name in names:
                    own[name] = f"{own.get(name, '')} {line.strip()}".strip()
        found |= own
    return found
