"""The table of job methods. It feeds ``GET /methods``, the validation at submission, and the workers.

A method is an async function ``run(context, params, progress)`` that returns its outcome:

* ``context`` (:class:`abound.service.jobs.context.JobContext`): the stores, the model's keys, the job; prefixes,
  pins and the commit.
* ``params``: a frozen, self-validating dataclass.
* ``progress(stage, fraction)``: call it every second or two, from any thread. It raises
  :class:`abound.core.errors.Cancelled`, which the method must not catch.

The outcome is a dict of JSON values. Its ``metrics`` (a dict) and ``version`` (a string) go to the record's own
fields. An AboundError fails the job with its message. StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable and
NotReady cause a retry, as the death of the worker does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pydantic import TypeAdapter, ValidationError

from abound.core.config import ModelConfig
from abound.core.errors import InvalidInstance, did_you_mean
from abound.core.methods.registry import METHODS as BATCH_METHODS
from abound.service.jobs.fit import fit, needs
from abound.service.jobs.fit_params import fit_params
from abound.service.jobs.rebuild import RestoreParams, forget, refit, restore
from abound.service.processes.memory import require_memory
from abound.service.rebuild.redaction import ForgetParams
from abound.service.rebuild.refit import RefitParams
from abound.service.settings import field_descriptions

if TYPE_CHECKING:
    from abound.service.jobs.context import JobContext

Outcome = dict[str, Any]
Progress = Callable[[str, float], None]
Run = Callable[["JobContext", Any, Progress], Awaitable[Outcome]]


class ModelSizes(NamedTuple):
    """The size of a model when a job is submitted.

    Instances learned, features, classes, connections and bytes; then the size of the data that a batch method
    reads. ``assertions`` counts labels, ``nnz`` the active features of all instances (an estimate). ``pairs``,
    ``label_pairs`` and ``feature_labels`` count pairs of instances with a common label, pairs of labels with a
    common instance, and pairs of a feature and a label with a common instance
    (``abound.core.methods.training.matrices``).
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

    def kept(self, share: float) -> ModelSizes:
        """Return the sizes of the data if only this share of the instances is left, with labels as frequent as in all.

        Features and classes stay: the model knows all of them.
        """
        assertions = int(self.assertions * share)
        pairs = None if self.pairs is None else max(assertions, int(self.pairs * share**2))
        instances, nnz = int(self.instances * share), int(self.nnz * share)
        return self._replace(instances=instances, assertions=assertions, nnz=nnz, pairs=pairs)


Needs = Callable[[ModelSizes, Any], dict[str, int]]
"""Most bytes that a job needs, by purpose: ``{"the new state": 10_000, "the current state": 10_000}``."""


@dataclass(frozen=True)
class JobMethod:
    """One job method.

    Attributes
    ----------
    params : type
        A frozen dataclass that validates itself (ValueError).
    run : callable
    needs : callable or None
        Maps sizes and params to bytes; None: the job needs no memory worth counting.
    kind : str
        The kind of worker that runs it. Each kind has its own queue and process, so that short or urgent jobs do
        not wait for long ones.
    summary : str
        One line for people; by default the first line of ``run``'s docstring.
    data : bool
        Whether it can read a data set instead of history.
    versions : bool
        Whether it makes versions, which may be activated if they are better.
    check_config : callable or None
        Takes validated parameters and the configuration of the model; raises InvalidInstance if they do not go
        together.
    """

    params: type[Any]
    run: Run
    needs: Needs | None = None
    kind: str = "rebuild"
    summary: str = ""
    data: bool = False
    versions: bool = False
    check_config: Callable[[Any, ModelConfig], None] | None = None

    @property
    def about(self) -> str:
        """One line that says what the method does."""
        return self.summary or (inspect.getdoc(self.run) or "").partition("\n")[0]

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the parameters, with descriptions from their docstring."""
        schema = self._adapter.json_schema()
        about = field_descriptions(self.params)
        for name, parameter in schema.get("properties", {}).items():
            if name in about:
                parameter.setdefault("description", about[name])
        return schema | {"additionalProperties": False}

    def check(self, given: dict[str, Any]) -> Any:
        """Return the validated parameters; raise InvalidInstance with the field ``params....`` if one is wrong."""
        try:
            # In JSON mode a list may be a tuple. Strings are not converted to numbers; unknown fields are refused.
            return self._adapter.validate_json(msgspec.json.encode(given), strict=True, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(["params", *map(str, first["loc"])])
            said = first["msg"].removeprefix("Value error, ")
            name = said.partition(" ")[0].rstrip(":")
            if not first["loc"] and name in names_of(self.params):  # their own check names the field
                raise InvalidInstance(f"params.{said}", f"params.{name}") from None
            said = f": {said[:1].lower()}{said[1:]}"
            if first["type"] == "unexpected_keyword_argument":
                hint = did_you_mean(str(first["loc"][-1]), names_of(self.params))
                said = f" is not a parameter of this method{hint}"
            elif first["type"] == "missing":
                said = " is missing"
            raise InvalidInstance(f"{field}{said}", field) from None

    def to_json(self, params: Any) -> dict[str, Any]:
        """Return validated parameters as JSON values, including defaults."""
        plain: dict[str, Any] = self._adapter.dump_python(params, mode="json")
        return plain

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.params)


def require_memory_for(name: str, method: JobMethod, params: Any, sizes: ModelSizes, free: int, whose: str) -> None:
    """Raise InsufficientMemory, with the calculation, if a job needs more than ``free`` bytes.

    ``whose`` names the owner of that memory in the message.
    """
    if method.needs is None:
        return
    about = f"{sizes.instances:,} instances, {sizes.features:,} features, {sizes.classes:,} classes"
    about += f", {sizes.connections:,} connections"
    require_memory(name, method.needs(sizes, params), about, free, whose)


def names_of(params: type[Any]) -> list[str]:
    """Return the names of a method's parameters."""
    return [field.name for field in fields(params)]


def rebuild_memory(sizes: ModelSizes, params: Any) -> dict[str, int]:
    """Return the memory that a rebuild needs.

    It has the current and the new state, and the bytes of one while it is written or read.
    """
    return dict.fromkeys(("the current state", "the new state", "its bytes while it is written"), sizes.memory)


def _fit_of(name: str) -> JobMethod:
    """Return the job method that fits a batch method."""
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
    "forget": JobMethod(ForgetParams, forget, rebuild_memory),
    "refit": JobMethod(RefitParams, refit, rebuild_memory, check_config=RefitParams.check_config),
    "restore": JobMethod(RestoreParams, restore, rebuild_memory),
}
