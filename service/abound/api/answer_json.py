"""Rankings as JSON.

:class:`~abound.api.schemas.learn_classify.ClassifyAnswer` defines the answer of ``/classify``. The usual
answer, without explanations, is joined from bytes: the part of a label is encoded once per class, and all scores are
encoded together. Both ways give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import Any

from abound.api.schemas.labels import details_from
from abound.api.schemas.learn_classify import Ancestor, Because, ClassifyAnswer, ClassifyRequest, ScoredLabel, encoder
from abound_core.model.live_model import Decided, LiveModel
from abound_core.types import START, Offset, Ranking

LIVE = "live"

PROBABILITY = b',"probability":'  # between the score of a label and its probability


class LabelFragments(dict[int, bytes]):
    """The JSON before the score of each class: ``},{"label":"grain","score":``; encoded on first use."""

    def __init__(self, live: LiveModel) -> None:
        self._labels = live.labels

    def __missing__(self, class_id: int) -> bytes:
        head = b'},{"label":%b,"score":' % encoder.encode(self._labels.key(class_id).decode())
        self[class_id] = head
        return head


class AnswerEncoder:
    def __init__(self) -> None:
        self._offset = START
        self._offset_text = str(START)
        self._tail = _tail(self._offset_text)

    def offset_text(self, offset: Offset) -> str:
        if offset is not self._offset:
            self._offset, self._offset_text = offset, str(offset)
            self._tail = _tail(self._offset_text)
        return self._offset_text

    def plain(self, live: LiveModel, ranking: Ranking, offset: Offset) -> bytes:
        """Return the JSON of an answer without explanations."""
        heads = live.fragments
        if heads is None:
            heads = live.fragments = LabelFragments(live)
        if offset is not self._offset:
            self.offset_text(offset)
        if not len(ranking.class_ids):
            return b'{"labels":[%b' % self._tail
        width = 2 if ranking.probabilities is None else 4
        parts = [PROBABILITY] * (width * len(ranking.class_ids))
        parts[::width] = map(heads.__getitem__, ranking.class_ids.tolist())
        parts[1::width] = encoder.encode(ranking.scores.tolist())[1:-1].split(b",")
        if ranking.probabilities is not None:
            parts[3::width] = encoder.encode(ranking.probabilities.tolist())[1:-1].split(b",")
        return b'{"labels":[%b}%b' % (b"".join(parts)[2:], self._tail)

    def explained(
        self, live: LiveModel, vector: bytes, ranking: Ranking, offset: Offset, request: ClassifyRequest
    ) -> ClassifyAnswer:
        """Return the answer as a struct, with explanations if the request asks for them."""
        labels = scored_labels(live, ranking)
        if request.explain:
            explained = live.explain(vector, ranking, request.known is not None)
            for scored, reasons in zip(labels, explained, strict=True):
                scored.because = [Because(feature, contribution) for feature, contribution in reasons]
        return ClassifyAnswer(labels, self.offset_text(offset), LIVE)


def scored_labels(live: LiveModel, ranking: Ranking) -> list[ScoredLabel]:
    estimates = repeat(None) if ranking.probabilities is None else ranking.probabilities.tolist()
    ranked = zip(ranking.class_ids.tolist(), ranking.scores.tolist(), estimates, strict=False)
    return [ScoredLabel(live.label(class_id), score, probability) for class_id, score, probability in ranked]


def decision_of(live: LiveModel, decided: Decided) -> dict[str, Any]:
    """Return the fields of ``ClassifyAnswer`` that a decision adds."""
    fields: dict[str, Any] = {"decision": decided.decision}
    if decided.audit:
        fields["audit"] = True
    if decided.decision == "defer":
        fields["candidates"] = [live.label(class_id) for class_id in decided.candidates.tolist()]
        if not live.decisions.reaches_coverage:
            fields["reachable"] = False
    return fields


def add_names(live: LiveModel, labels: list[ScoredLabel]) -> None:
    for scored in labels:
        class_id = live.find(scored.label)
        if class_id >= 0:
            scored.name = details_from(live.details.get(class_id)).name
            scored.zero_shot = live.times_learned(class_id) == 0 or None


def add_paths(live: LiveModel, labels: list[ScoredLabel]) -> None:
    for scored in labels:
        scored.path = _path(live, live.find(scored.label)) or [scored.label]


def surest_ancestor(live: LiveModel, ranking: Ranking, least: float) -> Ancestor | None:
    """Return the deepest label that has this probability with those below it; of several the most probable one."""
    sums: Counter[int] = Counter()
    if ranking.probabilities is not None:
        for class_id, probability in zip(ranking.class_ids.tolist(), ranking.probabilities.tolist(), strict=True):
            for at_or_above in live.tree.path(class_id):
                sums[at_or_above] += probability
    found = [(len(live.tree.path(one)), total, -one) for one, total in sums.items() if min(total, 1.0) >= least]
    if not found:
        return None
    _, total, at = max(found)
    return Ancestor(live.label(-at), min(total, 1.0), _path(live, -at))


def _path(live: LiveModel, class_id: int) -> list[str]:
    return [live.label(one) for one in live.tree.path(class_id)] if class_id >= 0 else []


def _tail(offset: str) -> bytes:
    return b'],"offset":"%b","version":"live"}' % offset.encode()
