"""The methods of jobs: one line each. That line feeds ``GET /methods``, the check at the door, and the workers.

A method is an async function ``run(context, params, progress)`` that returns what came of it:

* ``context`` (:class:`abound.service.jobs.context.JobContext`): store, artifacts, the model's keys, the job; what may
  be written, pinned and committed.
* ``params``: a frozen dataclass that checks itself.
* ``progress(stage, fraction)``: to be called every second or two; raises :class:`abound.core.errors.Cancelled`, which
  goes through. It may be called from any thread.

The outcome is a dict of JSON values; ``metrics`` (a dict) and ``version`` (a string) in it go to the record's own
fields. An error of the product fails the job with its sentence; StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable
and ClusterUnavailable let it be tried again, as the death of its worker does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from abound.core.errors import InvalidInstance
from abound.core.methods.registry import METHODS as BATCH_METHODS
from abound.service.jobs.fit import fit, needs
from abound.service.jobs.fit_params import described, fit_params
from abound.service.jobs.rebuild import RestoreParams, forget, refit, restore
from abound.service.processes.memory import refuse_beyond
from abound.service.rebuild.redaction import ForgetParams
from abound.service.rebuild.refit import RefitParams

if TYPE_CHECKING:
    from abound.service.jobs.context import JobContext

Outcome = dict[str, Any]
Progress = Callable[[str, float], None]
Run = Callable[["JobContext", Any, Progress], Awaitable[Outcome]]


class Sizes(NamedTuple):
    """What a model holds when a job is asked for.

    Instances learned, features, classes, connections, bytes; then what a batch method reads: labels, and about how
    many active features, of all instances together, and how many pairs of instances, of labels, and of features
    and labels, have a label, or an instance, in common (``abound.core.methods.training.matrices.Sizes``).
    """

    instances: int
    features: int
    classes: int
    connections: int
    memory: int
    assertions: int = 0
    nnz: int = 0
    pairs: int | None = None
    label_pairs: int | None = None
    feature_labels: int | None = None


Needs = Callable[[Sizes, Any], dict[str, int]]
"""Bytes that a job needs at most, by what for: ``{"the new index": 10_000, "the old one": 10_000}``."""


@dataclass(frozen=True)
class JobMethod:
    """What a job can do.

    Attributes
    ----------
    params : type
        A frozen dataclass that checks itself (ValueError).
    run : callable
    needs : callable or None
        Sizes and params to bytes; None: nothing worth counting.
    kind : str
        Which workers do it: each kind has a queue and a process of its own, so that what is short, or urgent, does
        not wait for what is long.
    summary : str
        For people, one line; by default the first one of ``run``'s docstring.
    data : bool
        Whether it can read a data set in the place of history.
    versions : bool
        Whether it makes versions, which may be activated when they are better.
    """

    params: type[Any]
    run: Run
    needs: Needs | None = None
    kind: str = "rebuild"
    summary: str = ""
    data: bool = False
    versions: bool = False

    @property
    def about(self) -> str:
        """What it does, in a line."""
        return self.summary or (inspect.getdoc(self.run) or "").partition("\n")[0]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its parameters, each with what their docstring says of it."""
        schema = self._adapter.json_schema()
        about = described(self.params)
        for name, parameter in schema.get("properties", {}).items():
            if name in about:
                parameter.setdefault("description", about[name])
        return schema | {"additionalProperties": False}

    def check(self, given: dict[str, Any]) -> Any:
        """The parameters, checked; InvalidInstance (field ``params....``) says what is wrong."""
        try:
            # As JSON, where a list is a tuple; a string is not a number, and what is unknown is refused.
            return self._adapter.validate_json(msgspec.json.encode(given), strict=True, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(["params", *map(str, first["loc"])])
            said = first["msg"].removeprefix("Value error, ")
            name = said.partition(" ")[0].rstrip(":")
            if not first["loc"] and name in names_of(self.params):  # the parameters check themselves, and name it
                raise InvalidInstance(f"params.{said}", f"params.{name}") from None
            said = f"{said[:1].lower()}{said[1:]}"
            raise InvalidInstance(f"{field}: {said}", field) from None

    def plain(self, params: Any) -> dict[str, Any]:
        """Checked parameters as JSON values, defaults and all."""
        plain: dict[str, Any] = self._adapter.dump_python(params, mode="json")
        return plain

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.params)


def check_memory(name: str, method: JobMethod, params: Any, sizes: Sizes, free: int, whose: str) -> None:
    """NeedsMemory when a job needs more than ``free`` bytes, with the arithmetic; ``whose``: whose memory that is."""
    if method.needs is None:
        return
    about = f"{sizes.instances:,} instances, {sizes.features:,} features, {sizes.classes:,} classes"
    about += f", {sizes.connections:,} connections"
    refuse_beyond(name, method.needs(sizes, params), about, free, whose)


def names_of(params: type[Any]) -> list[str]:
    """The names of a method's parameters."""
    return [field.name for field in fields(params)]


def of_an_index(sizes: Sizes, params: Any) -> dict[str, int]:
    """What making an index anew needs: there are two of them, and the bytes of one while it is written or read."""
    return dict.fromkeys(("the index as it is", "the new one", "its bytes while it is written"), sizes.memory)


def _fit_of(name: str) -> JobMethod:
    """The job that fits a batch method."""
    return JobMethod(
        fit_params(name),
        fit,
        partial(needs, name),
        kind="fit",
        summary=BATCH_METHODS[name].use,
        data=True,
        versions=True,
    )


METHODS: dict[str, JobMethod] = {
    **{name: _fit_of(name) for name in BATCH_METHODS},
    "forget": JobMethod(ForgetParams, forget, of_an_index),
    "refit": JobMethod(RefitParams, refit, of_an_index),
    "restore": JobMethod(RestoreParams, restore, of_an_index),
}
