"""The live model: the state of one model that answers requests and is changed only by applying log entries.

The same events in the same order give the same ``abound_core.model.state``, bit for bit; ``digest`` identifies it in
32 hex characters. This module uses no clock, no randomness and no threads. The secret of the hash tables decides only
where a key lies in memory.

Records are applied in slices, so that the event loop that owns the model can answer requests in between::

    applying = model.begin(records, n, units, entry)
    while not applying.done:
        applying.step(32)
        await asyncio.sleep(0)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from numba import typeof, types

from abound_core.config import FIXED_AFTER_LEARNING, VECTOR_FIELDS, DecideConfig, ModelConfig
from abound_core.errors import Conflict, Contradiction, InvalidInstance
from abound_core.index import index
from abound_core.index import learning_kernels as learning
from abound_core.index.index import ALL_CLASSES
from abound_core.index.layout_kernels import Feedback
from abound_core.index.params import IndexParams
from abound_core.instances import record, text_encoder, vectorizer, vocabulary
from abound_core.instances.codes_kernels import EXPANSION, MAX_KEY_BYTES, PREFIX, WINNERS, expand_vector
from abound_core.instances.record import (
    EMPTY_VECTOR,
    add_dense,
    add_details,
    dense_of,
    details_of,
    has_dense,
    pack_labels,
    pack_vector,
    unpack_vector,
    with_labels,
)
from abound_core.instances.record_kernels import HAS_DENSE, record_shape
from abound_core.instances.vectorizer import Vectorizer
from abound_core.instances.vocabulary_kernels import find_vector
from abound_core.limits import DATASET_LIMITS, Limits
from abound_core.measures import Propensity
from abound_core.model import label_tree
from abound_core.model.active_version import LIVE
from abound_core.model.answer_kernels import (
    explain_vector,
    rank_estimated,
    rank_reranked,
    rank_vector,
)
from abound_core.model.apply_kernels import (
    ACTIVE,
    AT,
    CLASSES,
    DONE,
    ENOUGH,
    FIRST_VECTOR,
    INDEX_FULL,
    N_CURSOR,
    NAMES_FULL,
    PREPARED,
    REGISTERED,
    REGISTERS,
    STATUS,
    apply_calibrated,
    apply_records,
    apply_reranked,
    count_unchanged,
    intern_bounded,
    intern_labels,
    skip_records,
)
from abound_core.model.calibration import Calibration
from abound_core.model.decision_kernels import AGREEMENT, ANSWER, DEFER, MOST_CANDIDATES, decide_answer
from abound_core.model.decisions import NAMES, Decisions
from abound_core.model.entry_application import EntryApplication, Unit
from abound_core.model.handle_kernels import ApplyScratch, LiveArrays, LivePointers, ModelHandle
from abound_core.model.label_changes import decode_request, planned
from abound_core.model.label_details import PAGE, parent_in
from abound_core.model.label_sets import learn_set, moved, params_of
from abound_core.model.label_sets_kernels import learn_label_sets, rank_given
from abound_core.model.prequential import MOST_TIME, Prequential
from abound_core.model.prequential_kernels import count_ranks
from abound_core.model.receipts import Receipts
from abound_core.model.reranker import Reranker
from abound_core.model.state import ModelState
from abound_core.numba.top_k import N_BEST, new_best, new_first
from abound_core.types import START, Offset, Ranking

INTERCEPT = "(intercept)"  # key among the contributions to a score

KNOWN = "(known)"  # key of the difference that the known labels make

MEANING = "(meaning)"  # key of the vector of an instance: the sum of its codes

RERANKED = "(re-ranking)"  # key of the difference that the re-ranker makes


class EnlargedTables(NamedTuple):
    """Larger hash tables for the vocabularies of a model; None for a vocabulary that does not need one."""

    features: npt.NDArray[np.uint64] | None
    labels: npt.NDArray[np.uint64] | None


class Decided(NamedTuple):
    """The decision on an instance."""

    decision: str  # ``answer``, ``defer`` or ``none``
    applied: Ranking  # with ``answer``, the labels to apply
    ranking: Ranking  # at least the best 50
    candidates: npt.NDArray[np.int32]  # the smallest set of classes that has a true one with the target probability
    audit: bool  # whether a person should label it all the same


class LiveModel(ModelState):
    """A model that learns from every event.

    ``limits`` are for incoming requests. They are not part of the state: log entries apply whatever the limits are now.

    Attributes
    ----------
    at : tuple of Offset and int
        The entry that is applied, and the position of its next record.
    fragments : object
        What a caller has made of the labels by class id, to be kept until one is renamed; None afterwards.
    """

    at: tuple[Offset, int] = (START, 0)

    def __init__(self, config: ModelConfig, secret: tuple[int, int], limits: Limits | None = None) -> None:
        super().__init__(config, secret)
        self.limits = limits or Limits()
        self.fragments: Any = None
        self._scratch = _scratch(64, 16, 0)
        self._cursor = np.zeros(N_CURSOR, np.int64)
        self._sets: ModelHandle | None = None
        self._take_config(config)

    @classmethod
    def from_arrays(
        cls,
        meta: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        secret: tuple[int, int],
        limits: Limits | None = None,
    ) -> Self:
        model = super().from_arrays(meta, arrays, secret)
        model.limits = limits or Limits()
        model._take_config(model.config)
        return model

    # --- the configuration

    def _take_config(self, config: ModelConfig) -> None:
        self.config = config
        self.vectorizer = Vectorizer(config, self.limits)
        self.index.params = IndexParams.of(config)
        self.label_sets.params = params_of(config)
        self._tallies.set_bound(config.max_features)
        n_codes = self.features.count_longer(PREFIX) if config.max_features else 0
        self._tallies.set_codes(config.codes if config.update == "sls" else 0, n_codes)
        if config.estimates != self.calibration.on:
            self.calibration = Calibration(config.estimates)
        if (config.decide is not None) != self.decisions.on:
            self.decisions = Decisions(config.decide)
        self.decisions.configure(config.decide)
        if self.reranks(config) != self.reranker.on:
            self.reranker = Reranker(self.reranks(config))
        self._tallies.set_awaiting(config.rerank is None and not self.reranker.on)
        self._make_room(0, 0, 0, 0, 0)

    def check_change(self, changes: dict[str, Any]) -> ModelConfig:
        """Return the configuration that results from ``changes``.

        Raises InvalidInstance for a field that is unknown or out of range. Raises Conflict if the model has learned and
        the field would change the meaning of its state, or a version is active and the field would change the vectors
        that it gets.
        """
        config = self.config.with_user_changes(changes)
        refused = self.config.refused_once_learned(config) if not self.is_untaught else []
        if refused:
            way = "create a new model instead"
            if not set(refused) & set(VECTOR_FIELDS):
                way = "run the job refit, which learns the log again with other values (settings)"
            raise Conflict(f"{', '.join(refused)} cannot change on a model that has learned; {way}")
        refused = [name for name in VECTOR_FIELDS if getattr(config, name) != getattr(self.config, name)]
        if refused and not self.serving.is_live:
            raise Conflict(
                f"{', '.join(refused)} cannot change while a version is active: it was fitted with their present "
                f"values; activate {LIVE} first"
            )
        return config

    def configured(self, changes: dict[str, Any]) -> ModelConfig:
        """Return the configuration after a configuration event.

        Replicas check changes before they append them, and another event may come in between. So fields that can no
        longer change keep their value, and an event that contradicts the present configuration changes nothing.
        """
        if not self.is_untaught:
            changes = {name: value for name, value in changes.items() if name not in FIXED_AFTER_LEARNING}
        try:
            return self.config.with_changes(changes)
        except Contradiction:
            return self.config

    def configure(self, changes: dict[str, Any]) -> None:
        """Apply a configuration event. Raises InvalidInstance for an unknown field or a value out of range."""
        self._take_config(self.configured(changes))

    # --- learning

    def begin(self, records: bytes, n: int, units: Sequence[Unit], entry: Offset = START) -> EntryApplication:
        return EntryApplication(self, records, n, units, entry)

    def apply(
        self,
        buffer: bytes,
        at: int,
        ranks: npt.NDArray[np.int32],
        updated: npt.NDArray[np.bool_],
    ) -> tuple[int, int]:
        """Apply 1 to ``len(ranks)`` records from byte ``at`` on; return where the next one is and their number."""
        entry, place = self.at
        self.prequential.arrays.now[0] = min(entry.milliseconds, MOST_TIME)
        if self.calibration.on:
            offset = self.calibration.arrays.at
            offset[0], offset[1], offset[2] = entry.milliseconds, entry.sequence, entry.position + place
        if self.changes.any:
            n = int(
                count_unchanged(self.labels.arrays, self.changes.class_of, self.changes.retired, buffer, at, len(ranks))
            )
            if n == 0:
                return self._apply_renamed(buffer, at, ranks, updated), 1
            ranks, updated = ranks[:n], updated[:n]
        self._cursor[AT], self._cursor[PREPARED:] = at, -1
        done = self._apply(buffer, ranks, updated)
        return (int(self._cursor[AT]), done) if done else (self._apply_details(buffer, at, ranks, updated), 1)

    def _apply_details(
        self, buffer: bytes, at: int, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]
    ) -> int:
        """Apply the record at byte ``at``, which registers or changes labels; return the position of the next one."""
        shape = record_shape(buffer, at)
        if shape.n_true > 0:
            return self._register(buffer, at, ranks, updated)
        ranks[0], updated[0] = 0, self._change_labels(details_of(buffer, shape))
        return int(shape.end)

    def _apply_renamed(
        self, buffer: bytes, at: int, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]
    ) -> int:
        """Apply the record at byte ``at`` by the present names of its labels; return the position of the next one.

        Retired labels are left out, and without any other label nothing is learned. A registration is for the label
        itself, also if it is retired.
        """
        shape = record_shape(buffer, at)
        record = with_labels(buffer, at, shape, lambda label: self.present(label, shape.details_at >= 0))
        ranks[0], updated[0] = 0, False
        if record:
            self._cursor[AT], self._cursor[PREPARED:] = 0, -1
            if not self._apply(record, ranks[:1], updated[:1]):
                self._apply_details(record, 0, ranks[:1], updated[:1])
        return int(shape.end)

    def _apply(self, buffer: bytes, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]) -> int:
        """Apply records from the cursor on; return their number, 0 if the first one registers a label."""
        begin, done, ranks_left, updated_left = self._cursor[AT], 0, ranks, updated
        while True:
            reranks = self.reranker.on or self.decisions.on
            prepares = reranks or self.config.max_features is not None
            apply_next = apply_reranked if reranks else apply_calibrated if self.calibration.on else apply_records
            apply_next(buffer, self._cursor, self._held, ranks_left, updated_left)
            done += int(self._cursor[DONE])
            status = self._cursor[STATUS]
            if status in (ENOUGH, REGISTERS) or (done > 0 and (not prepares or status == FIRST_VECTOR)):
                if self._sets is not None:
                    self._learn_sets(buffer, begin, done)
                return done
            # Apply a record that is already prepared, or for which features were evicted, in this call; the next call
            # would do that a second time.
            ranks_left, updated_left = ranks[done : done + 1], updated[done : done + 1]
            shape = record_shape(buffer, int(self._cursor[AT]))
            if status == FIRST_VECTOR:
                self.reranker = Reranker(True)
                self._tallies.set_awaiting(False)
                self._make_room(0, 0, 0, 0, 0)
            elif status == NAMES_FULL:
                n, key_bytes, label_bytes = shape.n_features, shape.end - shape.keys_at, shape.end - shape.labels_at
                if shape.dense_at >= 0:
                    n, key_bytes = n + WINNERS, key_bytes + WINNERS * MAX_KEY_BYTES
                    self._make_scratch(n, shape.n_labels, shape.end - int(self._cursor[AT]) + EXPANSION)
                n_vectors = shape.n_true if shape.dense_at >= 0 else 0
                self._make_room(n, key_bytes, shape.n_labels, label_bytes, n_vectors)
            elif status == INDEX_FULL:
                ids, class_ids = self._scratch.ids, self._scratch.class_ids
                self.index.make_room_for(ids[: self._cursor[ACTIVE]], class_ids[: self._cursor[CLASSES]])
                self._bind()

    def _learn_sets(self, buffer: bytes, at: int, n: int) -> None:
        """Learn the label sets of ``n`` records from byte ``at`` on, which were just applied."""
        cursor = np.array([at, n, 0, 0, 0])
        learn_label_sets(buffer, cursor, self._sets)
        while cursor[DONE]:
            self.label_sets.make_room_for(self._scratch.ids[: cursor[ACTIVE]], self._scratch.class_ids[:1])
            self._bind()
            learn_label_sets(buffer, cursor, self._sets)

    def _register(self, buffer: bytes, at: int, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]) -> int:
        """Apply the record at byte ``at``, which registers a label; return the position of the next record."""
        shape = record_shape(buffer, at)
        labels_at = shape.label_lengths_at - 4
        vector, part = buffer[at:labels_at], buffer[labels_at : shape.details_at]
        label = part[6 : 6 + int.from_bytes(part[4:6], "little")]
        name = vector if self.details.is_new(self.labels.find(label), vector) else EMPTY_VECTOR
        self._name(name + part, ranks[:1], updated[:1])
        class_id, details = self.labels.find(label), details_of(buffer, shape)
        self.details.put(class_id, details, vector)
        parent = parent_in(details)
        if parent and self.find(parent.decode()) < 0:  # a parent is a label, too
            named = EMPTY_VECTOR + pack_labels([parent.decode()], DATASET_LIMITS)
            self._name(named, np.zeros(1, np.int32), np.zeros(1, np.bool_))
        self.tree.put(class_id, self.find(parent.decode()) if parent else -1)
        return int(shape.end)

    def _name(self, record: bytes, ranks: npt.NDArray[np.int32], updated: npt.NDArray[np.bool_]) -> None:
        self._cursor[AT], self._cursor[PREPARED:], self._cursor[REGISTERED] = 0, -1, 0
        self._apply(add_details(record, b""), ranks, updated)

    def present(self, label: str, retired: bool = False) -> str | None:
        """Return the present name of a label, itself if it is unknown; None if it is retired, unless these count."""
        class_id = self.find(label)
        if class_id < 0:
            return label
        return self.label(class_id) if retired or not self.changes.is_retired(class_id) else None

    def _change_labels(self, request: bytes) -> bool:
        """Apply a request to change labels; return whether any changed."""
        asked = decode_request(request)
        entry, place = self.at
        at = entry._replace(position=entry.position + place)
        plan, made = planned(self.labels, self.changes, asked.changes, at)
        if not made:
            return False
        self.changes.commit(self.labels, plan, made, at, asked)
        self._make_room(0, 0, 0, 0, 0)
        if plan.moves:
            self.index.move_classes(plan.flows(), plan.n_ids)
            if self.config.known:
                self.label_sets = moved(self.label_sets, plan.flows(), plan.n_ids)
            if self.reranker.on:
                self.reranker.move_classes(plan.flows(), plan.n_ids, self.dimension)
            self._bind()
        counts = self._tallies.label_counts
        for number in plan.merged:
            into = plan.class_of(number)
            counts[into] += counts[number]
            counts[number] = 0
            self.details.move(number, into)
            self.tree.move(number, into)
            self.prequential.move_label(number, into)
        self.details.changed_pages.update(number // PAGE for number in (*plan.names, *plan.classes))
        self.fragments = None
        return True

    def continue_score(self, other: LiveModel) -> None:
        """Take over score, feedback counts and receipts of the state that a refitted model replaces."""
        self.prequential = Prequential.from_arrays(other.prequential.to_arrays())
        self._tallies.continue_feedback(other._tallies)
        self.receipts = Receipts.from_arrays(other.receipts.to_arrays())
        self._bind()

    def adopt_changes(self, other: LiveModel) -> None:
        """Take over what became of labels in a state whose log this one has learned by its present names."""
        self.changes.adopt(self.labels, other.labels, other.changes)
        self._make_room(0, 0, 0, 0, 0)

    def learn_again(
        self,
        ids: npt.NDArray[np.int32],
        values: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int32],
        feedback: Feedback | None = None,
    ) -> None:
        """Learn an instance of known ids in a later pass: features do not count as seen, and nothing is scored."""
        before = self.index.arrays, self.label_sets.arrays
        self.index.learn(ids, values, class_ids, count_seen=False, feedback=feedback)
        feedback = feedback or Feedback(len(class_ids), 0, 1.0)
        if self.config.known and feedback.n_true > 1:
            learn_set(self.label_sets, class_ids[: feedback.n_true], feedback.weight, feedback.partial)
        if self.index.arrays is not before[0] or self.label_sets.arrays is not before[1]:
            self._bind()

    @property
    def is_crowded(self) -> bool:
        """Whether a vocabulary is so large and full that its table should be enlarged before it must grow."""
        return self.features.is_crowded or self.labels.is_crowded

    def enlarged(self) -> EnlargedTables:
        """Build larger tables for the vocabularies that need them: the slow part of their growth, ahead of time.

        Only reads the model. It may run in another thread while requests are answered, as long as nothing changes the
        model.
        """
        return EnlargedTables(
            self.features.enlarged_table() if self.features.is_crowded else None,
            self.labels.enlarged_table() if self.labels.is_crowded else None,
        )

    def replace_tables(self, tables: EnlargedTables) -> None:
        """Switch to the tables of ``enlarged``. The model must not have learned since. The state stays the same."""
        if tables.features is not None:
            self.features.replace_table(tables.features)
        if tables.labels is not None:
            self.labels.replace_table(tables.labels)
        self._bind()

    def _make_room(self, n_features: int, key_bytes: int, n_labels: int, label_bytes: int, n_vectors: int) -> None:
        """Allocate space for the names of one more record: ids, key bytes, and counters of each id."""
        self.features.make_room(n_features, key_bytes)
        self.labels.make_room(n_labels, label_bytes)
        features, classes = self.features.n_ids + n_features, self.labels.n_ids + n_labels
        self.index.make_room(features, classes, n_labels)
        self._tallies.make_room(features, classes)
        self.reranker.make_room(classes, n_labels, n_vectors, self.dimension)
        self._make_scratch(n_features, n_labels, 0)
        self._bind()

    def _make_scratch(self, n_features: int, n_labels: int, n_bytes: int) -> None:
        """Make the scratch large enough. Call ``_bind`` afterwards."""
        ids, _, class_ids, _, memory, *_ = self._scratch
        if n_features > len(ids) or n_labels > len(class_ids) or n_bytes > len(memory):
            self._scratch = _scratch(
                max(n_features, len(ids)), max(n_labels, len(class_ids)), max(n_bytes, len(memory))
            )

    def _bind(self) -> None:
        decisions = self.decisions.arrays._replace(retired=self.changes.retired)
        parts = self.calibration.arrays, self.reranker.arrays, decisions
        arrays = self._arrays()
        self._held, self._sets = ModelHandle(arrays, self._scratch, *parts), None
        if self.config.known:
            sets = arrays._replace(postings=self.label_sets.arrays, params=self.label_sets.kernel_params)
            self._sets = ModelHandle(sets, self._scratch, *parts)

    def _arrays(self) -> LiveArrays:
        return LiveArrays(
            self.features.arrays,
            self.labels.arrays,
            self.index.arrays,
            self.index.kernel_params,
            self.prequential.arrays,
            self._tallies.label_counts,
            self._tallies.credits,
            self._tallies.control,
        )

    # --- answering

    def rank(
        self,
        vector: bytes,
        k: int,
        include: Collection[object] | None = None,
        exclude: Collection[object] | None = None,
        threshold: float | None = None,
        zero_shot: bool = True,
    ) -> Ranking:
        """Return the best classes for a vector, at most ``k``, best first; of equal scores the class learned first.

        A label in ``include`` and ``exclude`` stands for itself and all below it; unknown ones have no effect.
        ``zero_shot``: rank labels that were registered and never learned.
        """
        class_ids, scores, mask = self._asked(k, include, exclude, zero_shot)
        n = rank_vector(vector, self._held, mask, class_ids, scores)
        if n < 0:
            reranked = self._reranked(vector, class_ids, scores, mask, threshold)
            if reranked is not None:
                return reranked
            vector = self._prepare(vector)
            n = rank_vector(vector, self._held, mask, class_ids, scores)
        if threshold is not None:
            n = int(np.count_nonzero(scores[:n] >= threshold))
        return Ranking(class_ids[:n], scores[:n])

    def rank_known(
        self,
        vector: bytes,
        known: Collection[object],
        k: int,
        include: Collection[object] | None = None,
        exclude: Collection[object] | None = None,
        threshold: float | None = None,
        zero_shot: bool = True,
    ) -> Ranking:
        """Return ``rank`` of the other labels, given some labels of the instance; unknown ones have no effect.

        The index ranks, without the re-ranker. Raises InvalidInstance if the model does not learn label sets.
        """
        if self._sets is None:
            raise InvalidInstance("known needs a model with update: sls and known: true", "known")
        found = {self.find(label) for label in self.vectorizer.labels(known)} - {-1}
        given = np.array(sorted(found), np.int32)
        class_ids, scores, mask = self._asked(k, include, exclude, zero_shot)
        mask = mask.copy() if len(mask) else np.ones(self.labels.n_ids, np.uint8)
        mask[given] = 0
        n = rank_given(vector, self._held, self._sets, given, mask, class_ids, scores)
        if n < 0:
            vector = self._prepare(vector)
            n = rank_given(vector, self._held, self._sets, given, mask, class_ids, scores)
        if threshold is not None:
            n = int(np.count_nonzero(scores[:n] >= threshold))
        return Ranking(class_ids[:n], scores[:n])

    def rank_estimated(
        self,
        vector: bytes,
        k: int,
        include: Collection[object] | None = None,
        exclude: Collection[object] | None = None,
        threshold: float | None = None,
        min_probability: float | None = None,
        zero_shot: bool = True,
    ) -> Ranking:
        """Return ``rank`` with ``probabilities``, of a model that calibrates, or re-ranks and the vector is dense.

        ``min_probability`` filters the best k classes. Raises InvalidInstance if the model does neither.
        """
        class_ids, scores, mask = self._asked(k, include, exclude, zero_shot)
        reranked = self._reranked(vector, class_ids, scores, mask, threshold, min_probability)
        if reranked is not None:
            return reranked
        if not self.calibration.on:
            raise InvalidInstance(
                "min_probability needs a model that calibrates; configure it with calibrate true", "min_probability"
            )
        estimates = np.empty(len(scores), np.float64)
        n = rank_estimated(vector, self._held, mask, class_ids, scores, estimates)
        if n < 0:
            vector = self._prepare(vector)
            n = rank_estimated(vector, self._held, mask, class_ids, scores, estimates)
        return filtered(Ranking(class_ids[:n], scores[:n], estimates[:n]), threshold, min_probability)

    def rarer_first(self, ranking: Ranking) -> Ranking:
        """Return the classes by (max(s, 0) + .02) p^(-1/4), s the score and p the propensity of the label.

        The measure is that of Jain, Prabhu and Varma (KDD 2016, section 3): the less often a label was learned, the
        higher it comes.
        """
        counts = self._tallies.label_counts[ranking.class_ids]
        weights = Propensity().weights(counts, self.n_learned) ** 0.25
        order = np.argsort(-(np.maximum(ranking.scores, 0.0) + 0.02) * weights, kind="stable")
        class_ids, scores, probabilities = ranking
        return Ranking(class_ids[order], scores[order], None if probabilities is None else probabilities[order])

    def decide(
        self,
        vector: bytes,
        k: int,
        include: Collection[object] | None = None,
        exclude: Collection[object] | None = None,
        zero_shot: bool = True,
        agreement: float | None = None,
    ) -> Decided:
        """Return the decision on an instance, of a model that decides.

        ``agreement`` takes the place of the configured one. Only the first label of a model whose instances have one is
        ever applied, and only labels that ``include`` and ``exclude`` leave.
        """
        ranking = self.rank_estimated(vector, max(k, MOST_CANDIDATES), include, exclude, zero_shot=zero_shot)
        ids, scores, estimates = ranking
        applied = np.empty(N_BEST, np.bool_)
        target = self.decisions.arrays.params[AGREEMENT] if agreement is None else agreement
        decision, audit, n = decide_answer(self.decisions.arrays, vector, estimates, scores, target, applied)
        places = np.flatnonzero(applied) if decision == ANSWER else np.empty(0, np.int64)
        chosen = Ranking(ids[places], scores[places], estimates[places])  # type: ignore[index]
        return Decided(NAMES[decision], chosen, ranking, ids[:n], bool(audit) and decision != DEFER)

    def _reranked(
        self,
        vector: bytes,
        class_ids: npt.NDArray[np.int32],
        scores: npt.NDArray[np.float64],
        mask: npt.NDArray[np.uint8],
        threshold: float | None,
        min_probability: float | None = None,
    ) -> Ranking | None:
        """Return the ranking by the re-ranker; None if the model has none, or it does not apply to this vector."""
        if not (self.reranker.on and has_dense(vector)):
            return None
        estimates = np.empty(len(scores), np.float64)
        n = rank_reranked(vector, self._held, mask, class_ids, scores, estimates)
        if n == -1:
            self._make_scratch(_n_features(vector) + WINNERS, 0, len(vector) + EXPANSION)
            self._bind()
            n = rank_reranked(vector, self._held, mask, class_ids, scores, estimates)
        if n < 0:
            return None
        return filtered(Ranking(class_ids[:n], scores[:n], estimates[:n]), threshold, min_probability)

    def explain(self, vector: bytes, ranking: Ranking, known: bool = False) -> list[list[tuple[str, float]]]:
        """Return (key, contribution) of the features to the score of each class of a ranking, largest first.

        The contributions of a class sum to its score, up to rounding. An intercept (``sls`` in rows) is one of them,
        under the key ``INTERCEPT``. That of the instance's vector has the key ``MEANING``. If the re-ranker answers,
        the difference of its score and the index's has the key ``RERANKED``; with ``known`` it has the key ``KNOWN``.
        """
        names = unpack_vector(vector)[0]
        differs = known or (self.reranker.is_used and self._has_dimension(vector))
        vector = self._prepare(vector)
        keys = [*names, MEANING, INTERCEPT, KNOWN if known else RERANKED]
        parts = np.empty(int.from_bytes(vector[:4], "little"), np.float64)
        contributions = np.empty(len(keys), np.float64)
        because = []
        for class_id, score in zip(ranking.class_ids.tolist(), ranking.scores.tolist(), strict=True):
            explain_vector(vector, self._held, class_id, parts)
            contributions[: len(names)] = parts[: len(names)]
            contributions[-3:] = parts[len(names) :].sum(), self.index.intercept(class_id), 0.0
            contributions[-1] = score - contributions.sum() if differs else 0.0
            order = np.flatnonzero(contributions)
            order = order[np.argsort(-contributions[order], kind="stable")]
            because.append([(keys[i], float(contributions[i])) for i in order.tolist()])
        return because

    def _asked(
        self, k: int, include: Collection[object] | None, exclude: Collection[object] | None, zero_shot: bool
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Return arrays for the class ids and scores of a ranking, and the mask of allowed classes."""
        if k > self.labels.n_ids:
            k = self.labels.n_ids
        is_whole = include is None and exclude is None and zero_shot
        mask = ALL_CLASSES if is_whole else self._mask(include, exclude)
        if self.changes.any:
            visible = self.changes.visible(self.labels.n_ids)
            mask = visible if is_whole else mask & visible
        if not zero_shot:
            mask[self._is_unlearned()] = 0
        return np.empty(k, np.int32), np.empty(k, np.float64), mask

    def with_those_below(self, labels: Collection[str] | None) -> Collection[str] | None:
        """Return labels and all below them: until a parent changes, the same object for the same labels."""
        if not labels or not self.tree:
            return labels
        key = (self.tree.n_changes, self.changes.digest_bytes(), *labels)
        if key not in self._expanded:
            ids = {one for label in labels for one in self.tree.below(self.find(label)).tolist() if one >= 0}
            newest = list(self._expanded.items())[-1:]  # those of ``include``, when these are of ``exclude``
            self._expanded = dict(newest) | {key: frozenset(map(self.label, ids)).union(labels)}
        return self._expanded[key]

    def _mask(self, include: Collection[object] | None, exclude: Collection[object] | None) -> npt.NDArray[np.uint8]:
        mask = np.full(self.labels.n_ids, include is None, np.uint8)
        for labels, value in ((include or (), 1), (exclude or (), 0)):
            for label in self.vectorizer.labels(labels):
                class_id = self.find(label)
                if class_id >= 0:
                    mask[self.tree.below(class_id) if self.tree else class_id] = value
        return mask

    def active(self, vector: bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return the ids of a vector's features, codes included and -1 for unknown ones, and their values."""
        vector = self._prepare(vector)
        n = int.from_bytes(vector[:4], "little")
        ids = np.empty(n, dtype=np.int32)
        find_vector(self.features.arrays, vector, ids)
        return ids, np.frombuffer(vector, "<f4", n, offset=4).copy()

    def check_dimension(self, d: int) -> None:
        """Raise InvalidInstance unless the model can learn dense vectors of ``d`` numbers."""
        if self.config.update != "sls":
            raise InvalidInstance(
                f"vector needs a model with update: sls, and this one has update: {self.config.update}",
                "vector",
            )
        embed = self.config.analyzer.embed
        encoder = text_encoder.load(embed) if isinstance(embed, str) else embed
        dimension = self.dimension or (encoder and encoder.dimension)
        if dimension not in (0, None, d):
            raise InvalidInstance(f"vector has {d} numbers; those of this model have {dimension}", "vector")

    def _has_dimension(self, vector: bytes) -> bool:
        dense = dense_of(vector)
        return dense is not None and len(dense) == self.dimension

    def _prepare(self, vector: bytes) -> bytes:
        """Return a vector with codes in place of its dense part, after making the scratch large enough."""
        if has_dense(vector):
            target = np.empty(len(vector) + EXPANSION, np.uint8)
            codes = self.config.codes if self.config.update == "sls" else 0
            vector = target[: int(expand_vector(vector, codes, self.dimension, target))].tobytes()
        n = int.from_bytes(vector[:4], "little")
        if n > len(self._scratch.ids):
            self._make_scratch(n, 0, 0)
            self._bind()
        return vector


def _n_features(vector: bytes) -> int:
    """Return the number of features of a vector, without those of its dense part."""
    return int.from_bytes(vector[:4], "little") & (HAS_DENSE - 1)


def filtered(ranking: Ranking, threshold: float | None, min_probability: float | None) -> Ranking:
    """Return the classes of a ranking with at least this score and this probability."""
    ids, scores, probabilities = ranking
    if threshold is not None:
        ids, scores, probabilities = ranking.first(int(np.count_nonzero(scores >= threshold)))
    if min_probability is None:
        return Ranking(ids, scores, probabilities)
    kept = np.flatnonzero(probabilities >= min_probability)  # type: ignore[operator]
    return Ranking(ids[kept], scores[kept], probabilities[kept])  # type: ignore[index]


def _scratch(n_features: int, n_labels: int, n_bytes: int) -> ApplyScratch:
    return ApplyScratch(
        np.zeros(n_features, np.int32),
        np.zeros(n_features, np.float32),
        np.zeros(n_labels, np.int32),
        np.zeros(n_labels, np.int32),
        np.zeros(n_bytes, np.uint8),
        new_best(),
        new_first(),
    )


# --- compiling

DEFAULT_GROUPS = ("learning", "answering")
"""The groups of kernels that a model of the default configuration uses to learn and answer. Every model uses them."""

READING_GROUP = "reading"  # kernels that read instances, which can be read without (``vectorizer.use_kernel``)

STATE_GROUP = "state"  # digests, saves and restores a model of any configuration


def groups_of(config: ModelConfig) -> list[str]:
    """Return the groups of kernels with which a model learns and answers, in addition to ``DEFAULT_GROUPS``."""
    is_sls = config.update == "sls"
    used = {"sls": is_sls, "reranked": is_sls and config.rerank is not False, "plain": not config.estimates}
    used["decided"] = config.decide is not None
    return [group for group in used if used[group]]


def warmup(*groups: str) -> None:
    """Compile the kernels of these groups (default: all), or load them from numba's cache.

    ``learning`` and ``answering`` have little in common and take equally long: two processes can compile one each.
    """
    for group in groups or GROUPS:
        GROUPS[group]()


def _warm_learning() -> None:
    live, scratch = _handle_types()
    ids, values, class_ids, ranks, *_, first = scratch.values()
    feedback = numba_type(Feedback(1, 0, 1.0))
    arguments = live["postings"], live["params"], ids, values, class_ids, feedback
    _compile(learning.learn_fsu, *arguments, numba_types.boolean, ranks, first)
    _compile(learning.has_room, live["postings"], live["params"], ids, class_ids)
    _learned(ModelConfig())  # the other process has compiled the kernels of _warm_naming that this needs


def _warm_answering() -> None:
    _warm_naming()
    record.warmup()
    label_tree.warmup()
    model = LiveModel(ModelConfig(), (1, 2))
    model.labels.find(b"a")
    _answer(model)


def _warm_naming() -> None:
    live, scratch = _handle_types()
    ids, values, class_ids, ranks, *_ = scratch.values()
    data = numba_types.CPointer(numba_types.uint8)
    shape = numba_type(record_shape(_WARMING + pack_labels(["a"], Limits()), 0))
    of_model = numba_types.NamedTuple([*live.values()], LivePointers)
    _compile(intern_bounded, of_model, data, shape, ids, values, numba_types.boolean)
    _compile(intern_labels, of_model, data, shape, class_ids)
    model = LiveModel(ModelConfig(), (1, 2))
    count_unchanged(model.labels.arrays, model.changes.class_of, model.changes.retired, b"", 0, 0)
    _compile(count_ranks, live["score"], live["label_counts"], class_ids, ranks, numba_types.boolean, numba_types.int64)


def _handle_types() -> list[dict[str, Any]]:
    fields = numba_type(LiveModel(ModelConfig(), (1, 2))._held).field_dict
    return [dict(zip(fields[name].fields, fields[name].types, strict=True)) for name in ("live", "scratch")]


def _compile(kernel: Any, *arguments: Any) -> None:
    kernel.compile(arguments)


def _warm_state() -> None:
    vocabulary.warmup()
    label_tree.warmup()
    index.warmup("fsu")
    _keep(_learned(ModelConfig()))


def _warm_sls() -> None:
    model = _learned(ModelConfig(update="sls"))
    _answer(model)
    model.rank(add_dense(_WARMING, b"\1\2", 0.1), 10)
    model.begin(_WARMING + pack_labels(["a", "b"], model.limits), 1, [Unit(1)]).finish()
    model.rank_known(_WARMING, ["a"], 10)
    _keep(model)
    index.warmup("sls")


def _warm_plain() -> None:
    for update in ("fsu", "sls"):
        _learned(ModelConfig(update=update, calibrate=False))


def _warm_decided() -> None:
    for update in ("fsu", "sls"):
        model = _learned(ModelConfig(update=update, decide=DecideConfig()))
        model.decide(_WARMING, 10)
        model.stats()


def _warm_reranked() -> None:
    vector = add_dense(_WARMING, b"\1\2", 0.1)
    model = _learned(ModelConfig(update="sls"), vector)
    model.rank(vector, 10)
    _keep(model)


numba_type: Any = typeof
numba_types: Any = types  # mypy does not know numba's types

_WARMING = pack_vector([b"wheat", b"price"], np.array([0.6, 0.8], np.float32))


def _learned(config: ModelConfig, vector: bytes = _WARMING) -> LiveModel:
    model = LiveModel(config, (1, 2))
    for label in ("a", "b"):
        learned = vector + pack_labels([label], model.limits)
        model.begin(learned, 1, [Unit(1)]).finish()
    skip_records(learned, 0, 1)
    return model


def _answer(model: LiveModel) -> None:
    model.rank(_WARMING, 10)
    model.rank_estimated(_WARMING, 10)
    explain_vector(_WARMING, model._held, 0, np.empty(2))


def _keep(model: LiveModel) -> None:
    model.replace_tables(EnlargedTables(model.features.enlarged_table(), None))
    LiveModel.from_arrays(model.meta(), model.to_arrays(), (1, 2)).digest()


GROUPS = {
    "learning": _warm_learning,
    "answering": _warm_answering,
    READING_GROUP: vectorizer.warmup,
    STATE_GROUP: _warm_state,
    "sls": _warm_sls,
    "reranked": _warm_reranked,
    "decided": _warm_decided,
    "plain": _warm_plain,
}
