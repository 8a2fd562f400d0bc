"""The table of job methods. It feeds ``GET /methods``, the validation at submission, and the workers.

A method is an async function ``run(context, params, progress)`` that returns its outcome:

* ``context`` (:class:`abound.jobs.context.JobContext`): the stores, the model's keys, the job; prefixes,
  pins and the commit.
* ``params``: a frozen, self-validating dataclass.
* ``progress(stage, fraction)``: call it every second or two, from any thread. It raises
  :class:`abound_core.errors.Cancelled`, which the method must not catch.

The outcome is a dict of JSON values. Its ``metrics`` (a dict) and ``version`` (a string) go to the record's own
fields. An AboundError fails the job with its message. StoreUnavailable, OutcomeUnknown, ArtifactsUnavailable and
NotReady cause a retry, as the death of the worker does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from abound.jobs.fit import fit, fit_params
from abound.jobs.replace import RestoreParams, UndoParams, forget, refit, restore, undo
from abound.replace.forget import ForgetParams
from abound.replace.refit import RefitParams
from abound.settings import field_descriptions
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance, did_you_mean
from abound_core.methods.registry import METHODS as BATCH_METHODS

if TYPE_CHECKING:
    from abound.jobs.context import JobContext

Outcome = dict[str, Any]
Progress = Callable[[str, float], None]
Run = Callable[["JobContext", Any, Progress], Awaitable[Outcome]]


@dataclass(frozen=True)
class JobMethod:
    """One job method."""

    params: type[Any]  # a frozen dataclass that validates itself (ValueError)
    run: Run
    kind: str = "replace"  # has its own queue and process, so that short or urgent jobs do not wait for long ones
    summary: str = ""  # one line for people; by default the first line of ``run``'s docstring
    data: bool = False  # it can read a data set instead of history
    versions: bool = False  # it makes versions, which may be activated if they are better
    # Raises InvalidInstance if validated parameters and the configuration of the model do not go together.
    check_config: Callable[[Any, ModelConfig], None] | None = None

    @property
    def about(self) -> str:
        return self.summary or (inspect.getdoc(self.run) or "").partition("\n")[0]

    @cached_property
    def schema(self) -> dict[str, Any]:
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
        plain: dict[str, Any] = self._adapter.dump_python(params, mode="json")
        return plain

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.params)


def names_of(params: type[Any]) -> list[str]:
    return [field.name for field in fields(params)]


def _fit_of(name: str) -> JobMethod:
    return JobMethod(
        fit_params(name),
        fit,
        kind="fit",
        summary=BATCH_METHODS[name].use,
        data=True,
        versions=True,
    )


METHODS: dict[str, JobMethod] = {
    **{name: _fit_of(name) for name in BATCH_METHODS},
    "forget": JobMethod(ForgetParams, forget),
    "refit": JobMethod(RefitParams, refit, check_config=RefitParams.check_config),
    "restore": JobMethod(RestoreParams, restore),
    "undo": JobMethod(UndoParams, undo),
}
