"""The replicated state of one model, its digest, and its conversion to and from arrays.

It consists of the feature-to-class index, the index of label sets, the two vocabularies that assign dense ids in log
order, how often each label was learned, the details and parents of registered labels, the changes of labels, the
prequential score, the calibration, the decisions, the re-ranker, the receipts of idempotency keys, the configuration,
and the active version.
Only ``abound_core.model.live_model`` changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from abound_core.config import ModelConfig
from abound_core.errors import Corrupted, InvalidInstance
from abound_core.index.index import Index
from abound_core.index.params import IndexParams
from abound_core.instances.vocabulary import Vocabulary
from abound_core.model.active_version import NEVER_ACTIVATED, ServingState
from abound_core.model.calibration import Calibration, Suspect
from abound_core.model.counters import Counters
from abound_core.model.decisions import Decisions
from abound_core.model.label_changes import GIVEN_UP, LabelChanges, Renamed
from abound_core.model.label_details import DetailsTable
from abound_core.model.label_sets import params_of
from abound_core.model.label_tree import LabelTree
from abound_core.model.prequential import Prequential
from abound_core.model.receipts import Receipts
from abound_core.model.reranker import Reranker
from abound_core.types import Offset

STATE_FORMAT = 7
"""Version of the arrays of a state and of the bytes that its digest covers; raised when either changes.

7: the trace of the score has times. (6: a calibration has the most suspicious events. 5: the score has the classes of
its newest ranks, and labels have parents. 4: the sums of a re-ranker have a row only for each class with a vector.
3: receipts lie in pages, each receipt packed separately. 2: packed by pages. 1: no pages.)
"""

PARTS = (
    *("features", "labels", "index", "prequential", "receipts", "tallies"),
    *("calibration", "details", "tree", "changes", "reranker", "decisions", "label_sets"),
)

DIGEST_SLICE = 8  # pages of 256 features or labels digested before yielding to other tasks

_json = msgspec.json.Encoder()


class ModelState:
    """The parts of a model. ``secret``: two random 64-bit numbers, local to the process, that key the hash tables."""

    def __init__(self, config: ModelConfig, secret: tuple[int, int]) -> None:
        self.config = config
        self.features = Vocabulary(secret)
        self.labels = Vocabulary(secret)
        self.details = DetailsTable()
        self.tree = LabelTree()
        self.changes = LabelChanges()
        self.index = Index(IndexParams.of(config))
        self.label_sets = Index(params_of(config))
        self.prequential = Prequential()
        self.calibration = Calibration(config.estimates)
        self.decisions = Decisions(config.decide)
        self.receipts = Receipts()
        self.serving = NEVER_ACTIVATED
        self._tallies = Counters()
        self._tallies.set_bound(config.max_features)
        self.reranker = Reranker(self.reranks(config))
        self._unlearned: frozenset[str] = frozenset()
        self._unlearned_at = (0, 0, b"")
        self._expanded: dict[tuple[object, ...], frozenset[str]] = {}
        self._renamed: tuple[bytes, dict[Offset, Renamed]] = (b"", {})

    @property
    def n_learned(self) -> int:
        """Instances learned so far, with or without a true label."""
        return self.prequential.n_learned + self._tallies.n_unlabelled

    def stats(self) -> dict[str, Any]:
        """Return the prequential score and the sizes of the model, as plain values."""
        learned = {
            "learned": self.n_learned,
            "updated": self.prequential.n_updated,
            "feedback": self._tallies.feedback(),
        }
        parts = {
            "trace": self.prequential.trace(),
            "calibration": self.calibration.reliability(),
            "reranking": self.reranker.figures(),
            "decisions": self.decisions.figures(),
        }
        return {**learned, **self.prequential.scores(), **parts, **self.sizes()}

    def sizes(self) -> dict[str, Any]:
        features = len(self.features)
        reranker = {"class_means": self.reranker.n_bytes} if self.reranker.on else {}
        return {
            "connections": self.index.n_connections,
            "features": features,
            "classes": self.n_classes,
            "mean_out_degree": self.index.n_connections / features if features else 0.0,
            "in_rows": self.index.in_rows,
            "memory": {
                "index": self.index.n_bytes + self.label_sets.n_bytes,
                "features": self.features.n_bytes,
                "labels": self._labels_bytes,
                "counters": self._counters_bytes,
                "receipts": self.receipts.n_bytes,
            }
            | reranker,
        }

    @property
    def dimension(self) -> int:
        """Dimension of the vectors that the model learns; 0 before the first one."""
        return self._tallies.dimension

    def reranks(self, config: ModelConfig) -> bool:
        """Return whether the model re-ranks with this configuration; if it leaves this open, whether it has vectors."""
        return config.rerank is True or (config.rerank is None and self.dimension > 0)

    @property
    def n_classes(self) -> int:
        """Number of labels, without old names of other labels."""
        return self.labels.n_ids - self.changes.n_aliases

    def label(self, class_id: int) -> str:
        return self.labels.key(class_id).decode()

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """Times each label was learned, by class id, shape (>= n_classes,)."""
        return self._tallies.label_counts

    def find(self, label: str, at: Offset | None = None) -> int:
        """Return the class id of a label, given by any of its names, or by one that it had at an offset; else -1."""
        number = self.changes.number_at(label, at) if at is not None else -1
        return self.changes.of(self.labels.find(label.encode("utf-8", "surrogatepass")) if number < 0 else number)

    def aliases(self, class_id: int) -> list[str]:
        """Return the other names of a label."""
        numbers = np.flatnonzero(self.changes.class_of == class_id).tolist()
        names = [self.label(number) for number in numbers if number != class_id]
        return [name for name in names if not name.startswith(GIVEN_UP)]

    def renamed(self, at: Offset) -> Renamed:
        """Return the present names of labels that were changed, by their names at an offset. Keeps the answer."""
        known, kept = self._renamed
        if known != self.changes.digest_bytes():
            kept = {}
            self._renamed = self.changes.digest_bytes(), kept
        if at not in kept:
            found = kept[at] = Renamed()
            names = {self.labels.key(number).decode() for number in self.changes.changed()}
            names |= self.changes.given_up.keys()
            for name in names:
                class_id = self.find(name, at)
                found[name] = None if self.changes.is_retired(class_id) else self.label(class_id)
        return kept[at]

    def times_learned(self, class_id: int) -> int:
        return int(self._tallies.label_counts[class_id])

    def unlearned(self) -> frozenset[str]:
        """Return the labels that were registered and never learned."""
        class_ids = np.flatnonzero(self._is_unlearned())
        # Between two changes of labels, a class that was learned stays learned.
        known = (self.labels.n_ids, len(class_ids), self.changes.digest_bytes())
        if known != self._unlearned_at:
            self._unlearned_at, self._unlearned = known, frozenset(map(self.label, class_ids.tolist()))
        return self._unlearned

    def suspects(self) -> list[Suspect]:
        """Return the events that may have a wrong label, most suspicious first, by the present names of their labels.

        Those of labels that were retired, or merged with one another, are left out.
        """
        of, retired, kept = (
            self.changes.of,
            self.changes.is_retired,
            self.calibration.suspects(self.prequential.n_learned),
        )
        kept = [one._replace(given=of(one.given), first=of(one.first)) for one in kept]
        return [one for one in kept if one.given != one.first and not (retired(one.given) or retired(one.first))]

    def _is_unlearned(self) -> npt.NDArray[np.bool_]:
        n = self.labels.n_ids
        never = np.equal(self._tallies.label_counts[:n], 0)
        return never & (self.changes.visible(n) > 0) if self.changes else never

    @property
    def is_untaught(self) -> bool:
        """Whether nothing was learned: no instance, and no name of a label."""
        return not (self.n_learned or self.details or self.changes)

    @property
    def n_bytes(self) -> int:
        names = self.features.n_bytes + self._labels_bytes
        return (
            self.index.n_bytes
            + self.label_sets.n_bytes
            + names
            + self._counters_bytes
            + self.receipts.n_bytes
            + self.reranker.n_bytes
        )

    @property
    def _counters_bytes(self) -> int:
        return self._tallies.n_bytes + self.prequential.n_bytes + self.calibration.n_bytes

    @property
    def _labels_bytes(self) -> int:
        return self.labels.n_bytes + self.details.n_bytes + self.tree.n_bytes + self.changes.n_bytes

    @property
    def growth_bytes(self) -> int:
        """Bytes that growth may need soon. Learning stops when less than this is left below ``max_memory``.

        An event needs that and memory for its own keys, labels and vector (the table in ``docs/security-audit.md``).
        """
        names = self.features.growth_bytes + self.labels.growth_bytes + self._tallies.n_bytes // 8
        started = self.reranker.first_bytes(self.labels.n_ids) if self._tallies.awaits_vector else 0
        tree = self.tree.growth_bytes(self.labels.n_ids)
        return (
            self.index.growth_bytes + self.label_sets.growth_bytes + names + self.reranker.growth_bytes + started + tree
        )

    def digest_steps(self) -> Iterator[None]:
        """Do the work of ``digest`` in slices of about a millisecond. The model must not learn in between."""
        parts: list[Vocabulary | Index | Reranker] = [self.features, self.labels, self.index, self.reranker]
        for part in parts + [self.label_sets] * self.config.known:
            while not part.digest_pages(DIGEST_SLICE):
                yield

    def digest(self) -> str:
        """Return 32 hex characters over the whole logical state, independent of its layout.

        Only pages of 256 features that changed since the last call are hashed again. A model that never stopped and a
        model that was loaded from a snapshot and caught up have equal digests.
        """
        hashed = hashlib.blake2b(digest_size=16)
        reranker = [self.reranker.digest_bytes()] if self.reranker.on else []
        for part in (
            _json.encode(self.config.changed_fields()),
            self.features.digest(),
            self.labels.digest(),
            self.index.digest(),
            self._tallies.digest_bytes(self.features.n_ids, self.labels.n_ids),
            self.prequential.digest_bytes(),
            self.receipts.digest_bytes(),
            self.calibration.digest_bytes(),
            self.serving.to_bytes(),
            *([self.details.digest_bytes()] if self.details else []),
            *([self.tree.digest_bytes(self.labels.n_ids)] if self.tree else []),
            *([self.changes.digest_bytes()] if self.changes else []),
            *reranker,
            *([self.decisions.digest_bytes()] if self.decisions.on else []),
            *([self.label_sets.digest()] if self.config.known else []),
        ):
            hashed.update(len(part).to_bytes(8, "little"))
            hashed.update(part)
        return hashed.hexdigest()

    # --- as arrays

    def meta(self) -> dict[str, Any]:
        return {"config": self.config.to_dict(), "serving": msgspec.to_builtins(self.serving)}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        parts: dict[str, Mapping[str, npt.NDArray[Any]]] = {
            "features": self.features.to_arrays(),
            "labels": self.labels.to_arrays(),
            "index": self.index.to_arrays(),
            "prequential": self.prequential.to_arrays(),
            "receipts": self.receipts.to_arrays(),
            "tallies": self._tallies.to_arrays(self.features.n_ids, self.labels.n_ids),
            "calibration": self.calibration.to_arrays(),
            "details": self.details.to_arrays(),
            "tree": self.tree.to_arrays(self.labels.n_ids),
            "changes": self.changes.to_arrays(),
            "reranker": self.reranker.to_arrays(),
            "decisions": self.decisions.to_arrays(),
            "label_sets": self.label_sets.to_arrays() if self.config.known else {},
        }
        return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    @classmethod
    def from_arrays(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], secret: tuple[int, int]
    ) -> Self:
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {name: {} for name in PARTS}
        try:
            for name, array in arrays.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = array
            state = cls(ModelConfig.from_stored(meta["config"]), secret)
            state.features = Vocabulary.from_arrays(secret, parts["features"])
            state.labels = Vocabulary.from_arrays(secret, parts["labels"])
            state.index = Index.from_arrays(IndexParams.of(state.config), parts["index"], state.labels.n_ids)
            if state.config.known:
                params = state.label_sets.params
                state.label_sets = Index.from_arrays(params, parts["label_sets"], state.labels.n_ids)
            elif parts["label_sets"]:
                raise Corrupted("a model without label sets has arrays of them")
            state.serving = msgspec.convert(meta["serving"], ServingState)
            state.prequential = Prequential.from_arrays(parts["prequential"])
            state.receipts = Receipts.from_arrays(parts["receipts"])
            state.calibration = Calibration.from_arrays(
                state.config.estimates, parts["calibration"], state.labels.n_ids
            )
            state.decisions = Decisions.from_arrays(state.config.decide, parts["decisions"])
            state._tallies.load_arrays(parts["tallies"], state.features.n_ids, state.labels.n_ids)
            state.details = DetailsTable.from_arrays(parts["details"], state.labels.n_ids)
            state.tree = LabelTree.from_arrays(parts["tree"], state.labels.n_ids)
            state.changes = LabelChanges.from_arrays(parts["changes"], state.labels)
            state.reranker = Reranker.from_arrays(
                state.reranks(state.config), parts["reranker"], state.labels.n_ids, state.dimension
            )
        except (KeyError, TypeError, ValueError, InvalidInstance, msgspec.MsgspecError) as error:
            raise Corrupted(f"the arrays of a model do not fit together: {error}") from error
        if not (state.features.is_text() and state.labels.is_text()):
            raise Corrupted("a feature key or a label is not UTF-8")
        if (
            state.index.n_features > state.features.n_ids
            or state.label_sets.n_features > state.labels.n_ids
            or state.index.n_classes > state.labels.n_ids
            or len(state.labels) != state.labels.n_ids
        ):
            raise Corrupted("the index of a model does not fit its vocabularies")
        return state
