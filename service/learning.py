"""What a labelled instance is learned as: everything about it checked, its record made, and its way into the log."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import msgspec

from core.config import ModelConfig
from core.errors import InvalidInstance
from core.record import pack_labels
from service.budget import Budget
from service.group import Draft, Learned
from service.intake import Brought, Changing, NewClasses
from service.model_replica import ModelReplica
from service.reading import ABSENT, is_empty, vector_of
from service.remembered import RememberParams, reading_of, recall
from service.repeats import body_hash, first_time
from service.replica import Replica
from service.schemas import LabelledInstance, LearnRequest
from service.settings import Settings


class Terms(NamedTuple):
    """How drafts are to be kept and what their answer waits for; the lines of one group share them."""

    wait: Literal["applied", "log"]
    durability: str


class Learning:
    """Checks labelled instances and appends them.

    Parameters
    ----------
    replica : Replica
    settings : Settings
        For the durability that is not asked for, and how long an answer waits.
    remember_params : RememberParams
    changing : Changing
    budget : Budget
    """

    def __init__(
        self,
        replica: Replica,
        settings: Settings,
        remember_params: RememberParams,
        changing: Changing,
        budget: Budget,
    ) -> None:
        self._replica = replica
        self._remember_params = remember_params
        self._changing = changing
        self._budget = budget
        self._durability = settings.durability
        self._wait_seconds = settings.wait_seconds
        self._new_classes: dict[str, NewClasses] = {}

    def terms(self, request: LearnRequest, keyed: bool) -> Terms:
        """Of a request: with a key it waits until it is applied, for only then is known whether it is a repeat."""
        return Terms("applied" if keyed else request.wait, request.durability or self._durability)

    async def again(
        self, model: ModelReplica, instance: LabelledInstance, source: str | None, durability: str | None
    ) -> Learned | None:
        """What came of a remembered instance under this key the first time: it may be forgotten by now."""
        if instance.prediction is None or instance.key is None:
            return None
        return await self.first_time(model, instance.key, body_hash([instance], source), durability)

    async def first_time(self, model: ModelReplica, key: str, body: bytes, durability: str | None) -> Learned | None:
        """What came of the first request under a key, and how safe that is by now, as far as is asked."""
        learned = first_time(model, key, body)
        if learned is None or (durability or self._durability) == "log":
            return learned
        return msgspec.structs.replace(learned, durability=await self._replica.confirmed())

    def new_classes(self, model: ModelReplica) -> AbstractContextManager[Brought]:
        """What a request to learn brings that the model does not know, as long as it is on its way."""
        new = self._new_classes.get(model.name)
        if new is None or new.model is not model:
            new = self._new_classes[model.name] = NewClasses(model)
        return new.of_request(self._wait_seconds)

    async def record(self, model: ModelReplica, config: ModelConfig, instance: LabelledInstance, new: Brought) -> bytes:
        """The record of one labelled instance, with everything checked."""
        if instance.labels is None:
            raise InvalidInstance("labels is missing", "labels")
        labels = pack_labels(instance.labels, model.live.limits)
        has_features = bytes(instance.features) not in ABSENT
        if instance.prediction is None:
            vector = vector_of(model.live, instance.features, instance.text)
        elif has_features or instance.text is not None:
            raise InvalidInstance("prediction stands for an instance; give one or the other", "prediction")
        else:
            store, keys = self._replica.store, model.keys
            vector = await recall(store, keys, instance.prediction, self._remember_params, reading_of(config))
        if is_empty(vector):
            field = "features" if has_features else "text" if instance.prediction is None else "prediction"
            why = " (numbers below 0 count with `negative: split` alone)" if has_features else ""
            raise InvalidInstance(f"{field}: no feature is active{why}, so there is nothing to learn from", field)
        new.check(instance.labels)
        return vector + labels

    async def append(
        self, model: ModelReplica, config: ModelConfig, drafts: list[Draft], terms: Terms
    ) -> list[Learned]:
        """Append drafts of one request or of several lines, and await what they wait for.

        Raises what ``Replica.learn`` does, and what ``Budget.check`` does.
        """
        self._changing.check(model, config)
        receipts = model.live.receipts
        if any(draft.key is None or draft.key not in receipts for draft in drafts):
            self._budget.check(model)  # not for what was learned before and only wants its answer again
        return await self._replica.learn(model.name, drafts, terms.wait, terms.durability, self._wait_seconds)


def draft_of(instance: LabelledInstance, record: bytes, source: str | None, batch: int = 1) -> Draft:
    """A draft of one instance; ``batch`` as in :class:`~service.group.Draft`."""
    body = body_hash([instance], source) if instance.key is not None else b""
    return Draft(record, 1, instance.key, body, source, batch)
