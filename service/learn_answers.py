"""What came of labelled instances, as answers to ``/learn``."""

from __future__ import annotations

from service.facts import LEVELS
from service.group import Learned
from service.schemas import LearnAnswer, LearnBatchAnswer, LearnResult


def answer_of(learned: Learned) -> LearnAnswer:
    """The answer for one instance."""
    if learned.ranks is None or learned.updated is None:
        return LearnAnswer(str(learned.offset), learned.applied, learned.durability, None, None)
    return LearnAnswer(
        str(learned.offset), learned.applied, learned.durability, learned.ranks[0] or None, learned.updated[0]
    )


def batch_answer_of(learned: list[Learned]) -> LearnBatchAnswer:
    """The answer for a batch: the results in order, and the least that holds for all of them."""
    results = []
    for one in learned:
        stem = f"{one.offset.entry}."
        for at in range(one.n):
            offset = f"{stem}{one.offset.position + at}"
            if one.ranks is None or one.updated is None:
                results.append(LearnResult(offset, None, None))
            else:
                results.append(LearnResult(offset, one.ranks[at] or None, one.updated[at]))
    last = max(one.offset._replace(position=one.offset.position + one.n - 1) for one in learned)
    reached = min((one.durability for one in learned), key=LEVELS.index)
    return LearnBatchAnswer(results, str(last), all(one.applied for one in learned), reached)


def merged(known: list[Learned | None], learned: list[Learned]) -> list[Learned]:
    """Outcomes in the order of the instances: those that were known, and those of the others, one each."""
    singly = [
        Learned(
            one.offset._replace(position=one.offset.position + at),
            1,
            None if one.ranks is None else one.ranks[at : at + 1],
            None if one.updated is None else one.updated[at : at + 1],
            one.applied,
            one.durability,
        )
        for one in learned
        for at in range(one.n)
    ]
    others = iter(singly)
    return [next(others) if one is None else one for one in known]
