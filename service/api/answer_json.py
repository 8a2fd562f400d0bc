"""Rankings as JSON.

What an answer to classify looks like is :class:`~abound.service.api.schemas.hot.ClassifyAnswer`. The usual one, without
reasons, is put together from bytes instead: a label's part is made once a class, and the scores are written all at
once. Both ways give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from abound.core.model.live_model import LiveModel
from abound.core.types import START, Offset, Ranking
from abound.service.api.schemas.hot import Because, ClassifyAnswer, ScoredLabel, encoder

LIVE = "live"

PROBABILITY = b',"probability":'
"""What stands between the score of a label and its probability."""


class Heads(dict[int, bytes]):
    """By class id, what stands before its score: ``},{"label":"grain","score":``; made when first asked for."""

    def __init__(self, live: LiveModel) -> None:
        self._labels = live.labels

    def __missing__(self, class_id: int) -> bytes:
        """Make one."""
        head = b'},{"label":%b,"score":' % encoder.encode(self._labels.key(class_id).decode())
        self[class_id] = head
        return head


class Answers:
    """Makes answers of rankings."""

    def __init__(self) -> None:
        self._heads: WeakKeyDictionary[LiveModel, Heads] = WeakKeyDictionary()
        self._live_newest: Callable[[], LiveModel | None] = lambda: None
        self._heads_newest: dict[int, bytes] = {}
        self._offset = START
        self._offset_text = str(START)
        self._tail = _tail(self._offset_text)

    def offset_text(self, offset: Offset) -> str:
        """The offset as text; made once for as long as the same one is asked for."""
        if offset is not self._offset:
            self._offset, self._offset_text = offset, str(offset)
            self._tail = _tail(self._offset_text)
        return self._offset_text

    def plain(self, live: LiveModel, ranking: Ranking, offset: Offset) -> bytes:
        """The JSON of an answer without reasons."""
        heads = self._heads_newest if self._live_newest() is live else self._heads_of(live)
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

    def _heads_of(self, live: LiveModel) -> Heads:
        """The heads of a model; the last one that was asked for is the next one as a rule, so it lies at hand."""
        heads = self._heads.get(live)
        if heads is None:
            heads = self._heads[live] = Heads(live)
        self._live_newest, self._heads_newest = ref(live), heads
        return heads

    def whole(self, live: LiveModel, vector: bytes, ranking: Ranking, offset: Offset, explain: bool) -> ClassifyAnswer:
        """The answer as a value, with reasons if they are asked for."""
        scores = ranking.scores.tolist()
        labels = [
            ScoredLabel(live.label(i), score) for i, score in zip(ranking.class_ids.tolist(), scores, strict=True)
        ]
        if ranking.probabilities is not None:
            for scored, probability in zip(labels, ranking.probabilities.tolist(), strict=True):
                scored.probability = probability
        if explain:
            for scored, reasons in zip(labels, live.explain(vector, ranking), strict=True):
                scored.because = [Because(feature, contribution) for feature, contribution in reasons]
        return ClassifyAnswer(labels, self.offset_text(offset), LIVE)


def _tail(offset: str) -> bytes:
    """What stands behind the labels."""
    return b'],"offset":"%b","version":"live"}' % offset.encode()
