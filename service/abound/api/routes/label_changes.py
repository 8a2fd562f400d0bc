"""``/models/{model}/labels/...``: rename, merge, retire, revive and split labels, and list such changes.

A request is one event of the log, a learn event whose record says what changes
(``abound_core.model.label_changes``). It is checked against the present labels before that. If another event comes
first and makes a change impossible, that change is left out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from msgspec import structs
from pydantic import Field

from abound.api.decoding import convert
from abound.api.dependencies import GrantDep, JsonObject, ModelName, Parts, PartsDep, ReplicaDep
from abound.api.label_search import nearest_hint
from abound.api.learn import idempotency_key_of
from abound.api.openapi import JSON, json_body, problems
from abound.api.schemas.labels import ChangesRequest, MergeRequest, RenameRequest
from abound.api.schemas.shape import Shape
from abound.log.append_group import LearnDraft, LearnOutcome
from abound.security.audit import audited
from abound.security.guard import actor_of
from abound.security.key_ring import Grant
from abound.state.replicated_model import ReplicatedModel
from abound.tasks import TimeSlice
from abound_core.errors import Conflict, InvalidInstance, TooLarge, UnknownLabel
from abound_core.index.relabel_kernels import count_connections
from abound_core.instances.record import pack_change
from abound_core.instances.record_kernels import MAX_REQUEST_BYTES
from abound_core.model.label_changes import ChangePlan, ChangeRequest, LabelChange, ListedChange, encode
from abound_core.types import Offset

SLICE = 4096  # features that are read before other tasks get a turn

PLACES = {"from": "changes[{}].from", "to": "changes[{}].to"}

router = APIRouter(tags=["models"])


class EffectShape(Shape):
    """A label that a change concerns."""

    label: str
    aliases: list[str]
    learned: int = Field(description="How often it was learned.")
    connections: int = Field(description="Its connections to features in the index.")
    children: int = Field(description="Number of labels that are registered with it as their parent.")


class ChangedAnswer(Shape):
    """The offset of the change in the log, or with `dry_run` what it concerns."""

    changed: int = Field(description="Number of changes that were not made before.")
    offset: str | None = Field(description="Null: nothing changed.")
    durability: str | None = Field(description="`log`, `fsync` or `replica`; null: nothing changed.")
    effects: list[EffectShape] | None = Field(None, description="With `dry_run`: the label of each change.")


class ListedChangeShape(Shape, record=ListedChange, fields="kind alias offset by"):
    """A change, and how to undo it."""

    from_: str = Field(serialization_alias="from")
    to: str | list[str] | None
    time: float = Field(description="Unix time, by the store's clock.")
    undo: str


class ChangesAnswer(Shape):
    """The newest 1,000 changes, newest first."""

    changes: list[ListedChangeShape]


DryRun = Annotated[bool, Query(description="Return what would change, and change nothing.")]
LabelPath = Annotated[str, Path(max_length=512, description="The label; `/` may stand in it.", examples=["grain"])]
RESPONSES: Any = {
    202: {"model": ChangedAnswer, "description": "Durable, but not applied yet."},
    **problems(400, 404, 409, 413, 415, 422, 429, 503, 504, 507),
}


class LabelChanger:
    """What a request to change labels needs of the service; ``effects`` are collected for a dry run."""

    def __init__(self, model: ReplicatedModel, request: Request, parts: Parts, grant: Grant | None) -> None:
        self._model = model
        self._request = request
        self._parts = parts
        self._grant = grant
        self._concerned: list[int] = []  # the class id of each change

    async def change(
        self, changes: Sequence[LabelChange], dry_run: bool, places: Mapping[str, str] = PLACES
    ) -> Response:
        """Make changes; ``places`` are the fields of the request for ``from`` and ``to`` of each."""
        parts, model, most = self._parts, self._model, self._parts.settings.max_batch
        if len(changes) > most:
            raise InvalidInstance(f"changes: a request has at most {most}, not {len(changes)}", "changes")
        key = idempotency_key_of(dict(self._request.scope["headers"]))
        body = hashlib.blake2b(encode(changes), digest_size=16).digest()
        done = None if key is None or dry_run else await parts.learning.earlier_result(model, key, body)
        if done is not None:
            return _answer(0, done)
        await parts.rates.admit(self._grant, len(changes), None, learns=True)
        names = model.live.vectorizer.labels  # they have the form in which labels are learned
        named = [
            structs.replace(
                one,
                name="".join(names([one.name])),
                to="".join(names([one.to])) if isinstance(one.to, str) else names(one.to),
            )
            for one in changes
        ]
        plan, made = await self._plan(named, places)
        if dry_run:
            return _answer(len(made), None, await self._effects())
        if not made:
            return _answer(0, None)
        self._check_room(plan)
        key = key or secrets.token_hex(8)  # the changes can be forgotten by it
        record = change_record(made, self._grant, key)
        shown = [encode(change).decode() for change in made[:10]]
        audit = audited(parts.replica.store, actor_of(self._request.scope), "labels.change", model=model.name)
        async with audit as details:
            details |= {"changes": shown, "n": len(made)}
            draft = LearnDraft(record, 1, key, body)
            [done] = await parts.learning.append(model, model.live.config, [draft], "applied")
            if done.refused is not None:
                raise done.refused
            if done.updated == [False]:
                raise Conflict("other changes of these labels came first; nothing was changed")
        return _answer(len(made), done)

    async def _plan(
        self, changes: Sequence[LabelChange], places: Mapping[str, str]
    ) -> tuple[ChangePlan, list[LabelChange]]:
        """Return the plan of all changes, and those that were not made before."""
        live = self._model.live
        plan, made, pace = ChangePlan(live.labels, live.changes), [], TimeSlice()
        for at, change in enumerate(changes):
            try:
                if any(len(name.encode()) > live.limits.max_label_bytes for name in change.targets):
                    raise InvalidInstance(f"a label has at most {live.limits.max_label_bytes} bytes", "to")
                self._concerned.append(plan.class_of(plan.find(change.name)))
                if plan.add(change):
                    made.append(change)
            except UnknownLabel as error:
                near = await nearest_hint(live, change.name if error.field == "from" else change.targets[0])
                raise UnknownLabel(f"{error}{near}", places[error.field or ""].format(at)) from None
            except InvalidInstance as error:
                raise InvalidInstance(str(error), places[error.field].format(at)) from None
            if pace.due():
                await pace.pause()
        return plan, made

    def _check_room(self, plan: ChangePlan) -> None:
        live = self._model.live
        new = sum(number == label for number, label in plan.classes.items())
        for n, most in ((live.n_classes + new, live.config.max_classes), (plan.n_ids, live.index.most_classes)):
            if most is not None and n > most and plan.n_ids > live.labels.n_ids:
                raise Conflict(f"the model would have {n} labels and old names of at most {most}")

    async def _effects(self) -> list[EffectShape]:
        live, pace = self._model.live, TimeSlice()
        connections = np.zeros(live.labels.n_ids, np.int64)
        for first in range(0, live.index.n_features, SLICE):
            count_connections(live.index.arrays, first, min(first + SLICE, live.index.n_features), connections)
            if pace.due():
                await pace.pause()
        effects = []
        for one in self._concerned:
            if one < live.labels.n_ids:
                effect = EffectShape(
                    label=live.label(one),
                    aliases=live.aliases(one),
                    learned=live.times_learned(one),
                    connections=live.index.n_features if live.index.in_rows else int(connections[one]),
                    children=len(live.tree.children(one)),
                )
                effects.append(effect)
            if pace.due():
                await pace.pause()
        return effects


def change_record(changes: list[LabelChange], grant: Grant | None, key: str | None = None) -> bytes:
    asked = encode(ChangeRequest(changes, None if grant is None else grant.id, key))
    if len(asked) > MAX_REQUEST_BYTES:
        raise TooLarge("the changes of this request take too many bytes; send fewer in one request")
    return pack_change(asked)


def _answer(changed: int, done: LearnOutcome | None, effects: list[EffectShape] | None = None) -> Response:
    answer = ChangedAnswer(
        changed=changed,
        offset=None if done is None else str(done.offset),
        durability=None if done is None else done.durability,
        effects=effects,
    )
    status = 202 if done is not None and not done.applied else 200
    return Response(answer.model_dump_json(exclude_defaults=True), status, media_type=JSON)


async def changer(model: ModelName, request: Request, parts: PartsDep, grant: GrantDep) -> LabelChanger:
    return LabelChanger(parts.replica.models.trusted(model), request, parts, grant)


ChangerDep = Annotated[LabelChanger, Depends(changer)]


@router.post(
    "/models/{model}/labels/rename",
    summary="Rename a label",
    response_model=ChangedAnswer,
    responses=RESPONSES,
    openapi_extra=json_body("RenameRequest", example={"from": "TV", "to": "Television"}),
)
async def rename_label(changes: ChangerDep, given: JsonObject) -> Response:
    """Give a label another name; what was learned for it stays. The old name becomes an alias."""
    asked = convert(given, RenameRequest)
    renamed = [LabelChange("rename", asked.name, asked.to, asked.alias)]
    return await changes.change(renamed, asked.dry_run, {"from": "from", "to": "to"})


@router.post(
    "/models/{model}/labels/merge",
    summary="Merge labels into another one",
    response_model=ChangedAnswer,
    responses=RESPONSES,
    openapi_extra=json_body("MergeRequest", example={"from": ["tv", "televisions"], "into": "TV"}),
)
async def merge_labels(changes: ChangerDep, given: JsonObject) -> Response:
    """Add what was learned for some labels to another one. Their names become aliases of it."""
    asked = convert(given, MergeRequest)
    merged = [LabelChange("merge", name, asked.into, asked.alias) for name in asked.name]
    return await changes.change(merged, asked.dry_run, {"from": "from[{}]", "to": "into"})


@router.post(
    "/models/{model}/labels/changes",
    summary="Change labels",
    response_model=ChangedAnswer,
    responses=RESPONSES,
    openapi_extra=json_body(
        "ChangesRequest", example={"changes": [{"kind": "split", "from": "shoes", "to": ["boots", "sandals"]}]}
    ),
)
async def change_labels(changes: ChangerDep, given: JsonObject) -> Response:
    """Make several changes, one after the other: all of them, or none.

    A split retires a label, and registers others that start with what was learned for it.
    """
    asked = convert(given, ChangesRequest)
    return await changes.change(asked.changes, asked.dry_run)


@router.get("/models/{model}/labels/changes", summary="The newest changes of labels", responses=problems(404, 422, 503))
async def get_label_changes(model: ModelName, replica: ReplicaDep) -> ChangesAnswer:
    """List the newest 1,000 changes, newest first."""
    return ChangesAnswer(changes=[_shown(one) for one in replica.model(model).live.changes.listed()])


@router.post(
    "/models/{model}/labels/{label:path}/revive",
    summary="Revive a retired label",
    response_model=ChangedAnswer,
    responses=RESPONSES,
)
async def revive_label(changes: ChangerDep, label: LabelPath, dry_run: DryRun = False) -> Response:
    """Suggest and learn a retired label again."""
    return await changes.change([LabelChange("revive", label)], dry_run, {"from": "label"})


@router.delete(
    "/models/{model}/labels/{label:path}", summary="Retire a label", response_model=ChangedAnswer, responses=RESPONSES
)
async def retire_label(changes: ChangerDep, label: LabelPath, dry_run: DryRun = False) -> Response:
    """Suggest a label no more, and learn nothing for it. The learned weights stay, for `revive`."""
    return await changes.change([LabelChange("retire", label)], dry_run, {"from": "label"})


def _shown(one: ListedChange) -> ListedChangeShape:
    undo = {
        "alias": f"rename {one.to!r} to {one.name!r}, without alias",
        "rename": f"rename {one.to!r} to {one.name!r}",
        "retire": f"revive {one.name!r}",
        "revive": f"retire {one.name!r}",
    }.get(one.kind, f"forget it: the job forget with the key {one.key!r}")
    time = Offset.parse(one.offset).milliseconds / 1000
    return ListedChangeShape.of(one, from_=one.name, to=one.to or None, time=time, undo=undo)
