"""Changes of labels: rename, alias, merge, retire, revive and split, and the table of what became of each label.

A request to change labels is a record (``abound_core.instances.record``) whose details are a ``ChangeRequest`` as
JSON. So the log, idempotency keys, history, forget and refit treat it like any other event.

Every name has a **number**, its id in the vocabulary of labels. A label keeps its number and what was learned for it
when it is renamed; the old name gets a new number, as an alias. A label that is merged into another one becomes an
alias of it, number and all. A name that shall not be an alias is given up: it gets a number with a key that no label
has, which says when that was. So no number is ever used for a second label, and a reader of earlier events knows what
the name meant then.

A plan (``ChangePlan``) carries out the changes of a request one after the other without changing anything. The service
checks a request with it, and a model applies it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from abound_core.array_spec import ArraySpec, check_arrays
from abound_core.errors import AboundError, Conflict, Corrupted, InvalidInstance, UnknownLabel
from abound_core.instances.vocabulary import Vocabulary
from abound_core.types import START, Offset

MAX_LISTED = 1000  # newest changes that a model lists

MAX_TARGETS = 100  # labels into which one can be split

GIVEN_UP = "\U0010ffff"  # begins the key of a number whose name was given up: then number, offset and name follow

ARRAYS = {
    "class_of": ArraySpec(np.int32, ("changed",), 0, "classes"),
    "retired": ArraySpec(np.uint8, ("changed",), 0, 1),
    "listed": ArraySpec(np.uint8, ("bytes",)),
}
"""The arrays of ``LabelChanges.to_arrays``; without changes there are none."""

Label = Annotated[str, Meta(min_length=1, max_length=512, examples=["TV"])]
Kind = Literal["rename", "alias", "merge", "retire", "revive", "split"]


class LabelChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename={"name": "from"}):
    """One change of a label."""

    kind: Kind
    name: Annotated[Label, Meta(description="The label, by any of its names.")]
    to: Annotated[
        Label | Annotated[list[Label], Meta(max_length=MAX_TARGETS)],
        Meta(
            description="Its new or further name, the label into which it is merged, or those into which it is split."
        ),
    ] = ""
    alias: Annotated[bool, Meta(description="Whether the old name stays as an alias; if not, it is free.")] = True

    @property
    def targets(self) -> list[str]:
        to = [self.to] if isinstance(self.to, str) else self.to
        return [name for name in to if name]


class ChangeRequest(Struct, frozen=True, omit_defaults=True):
    changes: list[LabelChange]
    by: str | None = None  # id of the API key
    key: str | None = None  # idempotency key


class ListedChange(LabelChange, frozen=True, kw_only=True):
    """A change that was made, with the offset of its event."""

    offset: str
    by: str | None = None
    key: str | None = None


encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(ChangeRequest).decode
_decode_listed = msgspec.json.Decoder(ListedChange).decode


def decode_request(request: bytes) -> ChangeRequest:
    """Return a request; one without changes if it cannot be read."""
    try:
        return _decode_request(request)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ChangeRequest([])


class LabelChanges:
    """What became of the labels of a model: false if none was ever changed.

    Attributes
    ----------
    any : bool
        What ``bool`` returns; faster.
    class_of : int32 array, shape (n,)
        The number of the label that each of the first ``n`` numbers stands for; later ones stand for themselves.
    retired : uint8 array, shape (n,)
        1 for a label that was retired.
    given_up : dict of lists of tuples of Offset and int, by name
        When a name was given up, oldest first, and its number of then.
    """

    def __init__(self) -> None:
        self.any = False
        self.class_of: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self.retired: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._aliases = np.zeros(0, np.int64)  # numbers that are no label of their own
        self.given_up: dict[str, list[tuple[Offset, int]]] = {}
        self._listed: deque[bytes] = deque(maxlen=MAX_LISTED)
        self._digest = b""
        self._visible: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def __bool__(self) -> bool:
        return self.any

    @property
    def n_aliases(self) -> int:
        return len(self._aliases)

    @property
    def n_bytes(self) -> int:
        return self.class_of.nbytes + self.retired.nbytes + sum(map(len, self._listed))

    def of(self, number: int) -> int:
        """Return the number of the label that a number stands for; -1 for -1."""
        return int(self.class_of[number]) if 0 <= number < len(self.class_of) else number

    def number_at(self, name: str, at: Offset) -> int:
        """Return the number that a name had at an offset if it was given up since; else -1."""
        return next((number for given_up, number in self.given_up.get(name, ()) if at < given_up), -1)

    def is_retired(self, number: int) -> bool:
        return number < len(self.retired) and bool(self.retired[number])

    def labels(self, n: int) -> npt.NDArray[np.int64]:
        """Return which of the first ``n`` numbers are labels, and not old names of others."""
        return np.delete(np.arange(n), self._aliases)

    def changed(self) -> list[int]:
        """Return the numbers that stand for others, or for labels that are retired."""
        return [*self._aliases.tolist(), *np.flatnonzero(self.retired).tolist()]

    def visible(self, n: int) -> npt.NDArray[np.uint8]:
        """Return 1 for each of the first ``n`` numbers that is a label and not retired. Do not change the array."""
        if len(self._visible) != n:
            self._visible = np.ones(n, np.uint8)
            self._visible[self.changed()] = 0
        return self._visible

    def commit(
        self, labels: Vocabulary, plan: ChangePlan, changes: Iterable[LabelChange], at: Offset, asked: ChangeRequest
    ) -> None:
        """Take over the ``changes`` of a request that a plan, made of this table and its labels, has carried out."""
        size = len(self.class_of)
        class_of = np.concatenate([self.class_of, np.arange(size, plan.n_ids, dtype=np.int32)])
        self.retired = np.concatenate([self.retired, np.zeros(plan.n_ids - size, np.uint8)])
        class_of[list(plan.classes)] = list(plan.classes.values())
        while not np.array_equal(class_of, final := class_of[class_of]):  # a label that was merged has aliases
            class_of = final
        self.class_of = class_of
        self.retired[list(plan.retired)] = list(plan.retired.values())
        freed = [number for number in plan.names if number < labels.n_ids]
        for number in freed:
            labels.remove(number)
        for number in [*reversed(freed), *range(labels.n_ids, plan.n_ids)]:  # the number freed last is given first
            labels.add(plan.names[number].encode())
        for one in changes:
            made = ListedChange(one.kind, one.name, one.to, one.alias, offset=str(at), by=asked.by, key=asked.key)
            self._listed.append(encode(made))
        self._seal(plan.names)

    def adopt(self, labels: Vocabulary, of_labels: Vocabulary, other: LabelChanges) -> None:
        """Take over another table, whose labels may have other numbers."""
        numbers = [labels.add(of_labels.key(number)) for number in other.changed()]
        into = [labels.add(of_labels.key(other.of(number))) for number in other.changed()]
        self.class_of, self.retired = np.arange(labels.n_ids, dtype=np.int32), np.zeros(labels.n_ids, np.uint8)
        self.class_of[numbers], self.retired[numbers] = into, other.retired[other.changed()]
        self._listed = other._listed.copy()
        self._seal({number: labels.key(number).decode() for number in numbers})

    def _seal(self, names: Mapping[int, str]) -> None:
        """Derive what is not stored; ``names`` are the new keys of numbers."""
        self.any, hashed = len(self._listed) > 0, hashlib.blake2b(digest_size=16)
        for array in self.to_arrays().values():
            hashed.update(array.tobytes())
        self._digest, self._visible = hashed.digest(), np.zeros(0, np.uint8)
        self._aliases = np.flatnonzero(self.class_of != np.arange(len(self.class_of)))
        for number in sorted(names):
            if names[number].startswith(GIVEN_UP) and self.class_of[number] != number:
                _, at, name = names[number].split(" ", 2)
                self.given_up.setdefault(name, []).append((Offset.parse(at), number))
                self.given_up[name].sort()

    def listed(self) -> list[ListedChange]:
        """Return the newest changes, newest first."""
        return [_decode_listed(one) for one in reversed(self._listed)]

    def digest_bytes(self) -> bytes:
        return self._digest

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        if not self:
            return {}
        listed = np.frombuffer(b"\n".join(self._listed), np.uint8)
        return {"class_of": self.class_of, "retired": self.retired, "listed": listed}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], labels: Vocabulary) -> LabelChanges:
        found, n_classes = cls(), labels.n_ids
        if not arrays:
            return found
        class_of, retired, listed = check_arrays("the changes of labels", arrays, ARRAYS, classes=n_classes).values()
        if len(class_of) > n_classes or not np.array_equal(class_of[class_of], class_of):
            raise Corrupted("the changes of labels do not fit the labels")
        found.class_of, found.retired = class_of.copy(), retired.copy()
        for one in listed.tobytes().split(b"\n"):
            _decode_listed(one)
            found._listed.append(one)
        found._seal({number: labels.key(number).decode() for number in found.changed()})
        return found


class Renamed(dict[str, str | None]):
    """The present name of each label that was renamed or merged; None for one that is retired."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[list[str], Sequence[str | None], int]] = {}

    def present(self, labels: list[str]) -> tuple[Sequence[str | None], int]:
        """Return the present names of the labels of a version, and how many are None or come before. Keeps both."""
        if not self:
            return labels, 0
        kept = self._lists.get(id(labels))
        if kept is None:
            names = [self.get(label, label) for label in labels]
            kept = self._lists[id(labels)] = labels, names, len(names) - len(set(names) - {None})
        return kept[1:]


class ChangePlan:
    """The effect of changes of labels, found one after the other.

    Attributes
    ----------
    n_ids : int
        Numbers afterwards.
    names : dict of str by int
        New keys of numbers, which must all be set at once.
    classes : dict of int by int
        The label that a number stands for, where this changes.
    merged : list of int
        Labels that became names of others.
    retired : dict of bool by int
    """

    def __init__(self, labels: Vocabulary, changes: LabelChanges, at: Offset = START) -> None:
        self._at = at
        self.n_ids = labels.n_ids
        self.names: dict[int, str] = {}
        self.classes: dict[int, int] = {}
        self.merged: list[int] = []
        self.retired: dict[int, bool] = {}
        self.moves: list[tuple[int, list[int]]] = []
        self._numbers: dict[str, int] = {}
        self._labels = labels
        self._changes = changes

    def flows(self) -> dict[int, dict[int, float]]:
        """Return for each label whose connections move the labels that receive them, each with its part."""
        flows: dict[int, dict[int, float]] = {}
        for of, targets in reversed(self.moves):  # what a move gives to a label goes where that label moves later
            flow: dict[int, float] = {}
            for target in targets:
                for final, part in flows.get(target, {target: 1.0}).items():
                    flow[final] = flow.get(final, 0.0) + part / len(targets)
            flows[of] = flow
        return flows

    def find(self, name: str) -> int:
        """Return the number of a name, or -1."""
        number = self._numbers.get(name)
        return self._labels.find(name.encode("utf-8", "surrogatepass")) if number is None else number

    def class_of(self, number: int) -> int:
        while (label := self.classes.get(number, self._changes.of(number))) != number:
            number = label
        return number

    def name_of(self, number: int) -> str:
        return self.names.get(number) or self._labels.key(number).decode()

    def is_retired(self, number: int) -> bool:
        return self.retired.get(number, self._changes.is_retired(number))

    def add(self, change: LabelChange) -> bool:
        """Make one more change; return False if it is as it shall be already.

        Raises UnknownLabel, Conflict, or InvalidInstance with the field; then nothing has changed.
        """
        of = self._known(change.name, "from")
        targets, most = change.targets, {"rename": 1, "alias": 1, "merge": 1, "split": MAX_TARGETS}.get(change.kind, 0)
        if not min(most, 1) <= len(targets) <= most:
            takes = {0: "no other label", 1: "one other label"}.get(most, f"1 to {most} other labels")
            raise InvalidInstance(f"{change.kind} takes {takes}", "to")
        if most == 0:
            return self._set_retired(of, change.kind == "retire")
        if change.kind == "split":
            return self._split(of, targets)
        return (self._merge if change.kind == "merge" else self._rename)(change, of, targets[0])

    def _known(self, name: str, field: str) -> int:
        number = self.find(name)
        if number < 0:
            raise UnknownLabel(f"the model does not know the label {name[:100]!r}", field)
        return self.class_of(number)

    def _set_retired(self, of: int, retired: bool) -> bool:
        changed = self.is_retired(of) != retired
        if changed:
            self.retired[of] = retired
        return changed

    def _rename(self, change: LabelChange, of: int, to: str) -> bool:
        before, number = self.name_of(of), self.find(to)
        if number >= 0 and self.class_of(number) != of:
            label = self.name_of(self.class_of(number))
            other = "there is a label" if label == to else f"the label {label[:100]!r} has the old name"
            raise Conflict(f"{other} {to[:100]!r}: merge the two, or choose another name")
        if change.kind == "alias":
            if number < 0:
                self._set_name(self._new(of), to)
            return number < 0
        changed = number != of
        if changed:
            self._set_name(of, to)
            self._set_name(self._new(of) if number < 0 else number, before)
        if change.alias or self.find(change.name) == of:
            return changed
        self._give_up(self.find(change.name))
        return True

    def _merge(self, change: LabelChange, of: int, to: str) -> bool:
        into = self._known(to, "to")
        if of == into:
            if self.find(change.name) == of:
                raise InvalidInstance(f"the label {to[:100]!r} would be merged into itself", "to")
            return False
        if self.is_retired(into):
            raise Conflict(f"the label {to[:100]!r} is retired: revive it first")
        self.moves.append((of, [into]))
        self.merged.append(of)
        self.classes[of] = into
        self.retired[of] = False
        if not change.alias:
            self._give_up(self.find(change.name))
        return True

    def _split(self, of: int, to: Sequence[str]) -> bool:
        numbers = [self.find(name) for name in to]
        if of in [self.class_of(number) for number in numbers if number >= 0] or len(set(to)) < len(to):
            raise InvalidInstance("a label is split into other labels, each named once", "to")
        if self.is_retired(of):
            return False
        for at, name in enumerate(to):
            if numbers[at] < 0:
                numbers[at] = self._new()
                self._set_name(numbers[at], name)
        self.moves.append((of, list(dict.fromkeys(map(self.class_of, numbers)))))
        self.retired[of] = True
        return True

    def _new(self, of: int | None = None) -> int:
        number = self.n_ids
        self.classes[number] = number if of is None else of
        self.n_ids += 1
        return number

    def _set_name(self, number: int, name: str) -> None:
        self.names[number] = name
        self._numbers[name] = number

    def _give_up(self, number: int) -> None:
        name = self.name_of(number)
        self._numbers[name] = -1
        self._set_name(number, f"{GIVEN_UP}{number} {self._at} {name}")


def planned(
    labels: Vocabulary, changes: LabelChanges, asked: Iterable[LabelChange], at: Offset
) -> tuple[ChangePlan, list[LabelChange]]:
    """Return the plan of those changes that can be made, and them. Another event may have prevented the others."""
    plan, made = ChangePlan(labels, changes, at), []
    for change in asked:
        try:
            if plan.add(change):
                made.append(change)
        except AboundError:
            continue
    return plan, made
