"""Rankings as JSON.

What an answer to classify looks like is :class:`~service.schemas.ClassifyAnswer`. The usual one, without reasons, is
put together from bytes instead: a label's part is made once a class, and the scores are written all at once. Both
ways give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from core.live import LiveModel
from core.types import START, Offset, Ranking
from service.schemas import Because, ClassifyAnswer, ScoredLabel, encoder

LIVE = "live"


class Heads(dict[int, bytes]):
    """By class id, the JSON of a scored label up to its score; made when first asked for."""

    def __init__(self, live: LiveModel) -> None:
        self._labels = live.labels

    def __missing__(self, class_id: int) -> bytes:
        """Make one."""
        head = b'{"label":%b,"score":' % encoder.encode(self._labels.key(class_id).decode())
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

    def offset_text(self, offset: Offset) -> str:
        """The offset as text; made once for as long as the same one is asked for."""
        if offset is not self._offset:
            self._offset, self._offset_text = offset, str(offset)
        return self._offset_text

    def plain(self, live: LiveModel, ranking: Ranking, offset: Offset) -> bytes:
        """The JSON of an answer without reasons."""
        heads = self._heads_newest if self._live_newest() is live else self._heads_of(live)
        class_ids = ranking.class_ids.tolist()
        labels = b""
        if class_ids:
            scores = encoder.encode(ranking.scores.tolist())[1:-1].split(b",")
            labels = b"},".join([heads[i] + score for i, score in zip(class_ids, scores, strict=True)]) + b"}"
        text = self._offset_text if offset is self._offset else self.offset_text(offset)
        return b'{"labels":[%b],"offset":"%b","version":"live"}' % (labels, text.encode())

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
        if explain:
            for scored, reasons in zip(labels, live.explain(vector, ranking), strict=True):
                scored.because = [Because(feature, contribution) for feature, contribution in reasons]
        return ClassifyAnswer(labels, self.offset_text(offset), LIVE)
