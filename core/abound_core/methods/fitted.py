"""A fitted method with everything needed to rank: column names, idf weights, and the method's model.

Its arrays and ``meta`` are stored as one artifact, without pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from abound_core.errors import Corrupted, InvalidInstance
from abound_core.instances.vocabulary import Vocabulary
from abound_core.measures import Rankings
from abound_core.methods import registry
from abound_core.methods.neighbors.vector_search import Graph
from abound_core.methods.training import array_checks, idf
from abound_core.methods.training.idf import Weights
from abound_core.methods.training.matrices import Csr, Matrices, vector_rows
from abound_core.methods.training.progress import Progress

LOAD_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError, InvalidInstance)
"""Errors that loading can raise for arrays that do not fit together, besides Corrupted."""

OPAQUE_PREFIX = "model/graph/"  # of arrays that a library reads without checks; never load foreign ones unchecked


def check_opaque(arrays: Mapping[str, npt.NDArray[Any]], progress: Progress) -> None:
    """Build each graph again from its vectors. Raise Corrupted unless the stored one has the same bytes."""
    for name in (one for one in arrays if one.startswith(OPAQUE_PREFIX)):
        number = name.removeprefix(OPAQUE_PREFIX)
        vectors = array_checks.require_array(arrays, f"model/vectors/{number}", np.float32, None, None)
        graph = array_checks.require_array(arrays, name, np.uint8, None)
        if not vectors.size or not np.isfinite(vectors).all():
            raise Corrupted(f"the vectors of the graph {number} are empty or not finite")
        if not np.array_equal(Graph.build(np.ascontiguousarray(vectors), progress).to_bytes(), graph):
            raise Corrupted(
                f"the graph {number} differs from the one built here from its vectors; fit the version here"
            )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FittedMethod:
    method: str  # its name in the registry
    params: Any
    features: Vocabulary  # column of each feature key
    labels: list[str]
    idf: Weights | None  # float32, shape (d,), or None; factor of each feature; None: vectors are used as they are
    model: registry.Model

    def apply_idf(self, X: Csr) -> Csr:
        return X if self.idf is None else idf.weighted(X, self.idf)

    def rank(self, X: Csr, k: int) -> Rankings:
        return self.model.rank(self.apply_idf(X), k)

    def rank_vectors(self, vectors: Iterable[bytes], k: int) -> Rankings:
        """Rank the best ``k`` labels for vectors of the service; unknown features are ignored."""
        return self.rank(vector_rows(vectors, self.features), k)

    def meta(self) -> dict[str, Any]:
        return {"method": self.method, "params": asdict(self.params)}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return labels, features and model as named arrays, from which ``from_arrays`` makes an equal method."""
        encoded = [label.encode() for label in self.labels]
        arrays: dict[str, npt.NDArray[Any]] = {
            "labels/lengths": np.array([len(label) for label in encoded], np.uint16),
            "labels/bytes": np.frombuffer(b"".join(encoded), np.uint8),
        }
        arrays |= {f"features/{name}": array for name, array in self.features.to_arrays().items()}
        arrays |= {f"model/{name}": array for name, array in self.model.to_arrays().items()}
        return arrays if self.idf is None else arrays | {"idf": self.idf}

    @classmethod
    def from_arrays(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], secret: tuple[int, int]
    ) -> FittedMethod:
        """Load the output of ``to_arrays`` with its ``meta``. Raises Corrupted if they do not fit together."""

        def under(folder: str) -> dict[str, npt.NDArray[Any]]:
            return {name[len(folder) :]: array for name, array in arrays.items() if name.startswith(folder)}

        try:
            ends = np.cumsum(
                array_checks.require_array(arrays, "labels/lengths", np.uint16, None), dtype=np.int64
            ).tolist()
            text = array_checks.require_array(arrays, "labels/bytes", np.uint8, None).tobytes()
            features = Vocabulary.from_arrays(secret, under("features/"))
            factors = array_checks.require_array(arrays, "idf", np.float32, len(features)) if "idf" in arrays else None
            if ends[-1:] != [len(text)]:
                raise Corrupted("the names or the idf weights of an artifact do not fit together")
            return cls(
                method=meta["method"],
                params=registry.params_of(meta["method"], meta["params"]),
                features=features,
                labels=[text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)],
                idf=factors,
                model=registry.method_of(meta["method"]).load(under("model/"), len(features), len(ends)),
            )
        except LOAD_ERRORS as error:
            raise Corrupted(f"the arrays of an artifact do not fit together: {error!r}") from error


def fit(
    method: str,
    data: Matrices,
    params: Any,
    rng: np.random.Generator,
    progress: Progress,
    *,
    use_idf: bool | None = None,
) -> FittedMethod:
    """Fit a method (``registry.fit``), with idf weights from the training vectors if requested.

    None: use idf weights for text data if the method supports them.
    """
    factors = None
    suits = registry.method_of(method).idf
    if use_idf and not suits:
        raise InvalidInstance(f"{method} takes no idf weights", "idf")
    if data.text and suits if use_idf is None else use_idf:
        factors = idf.weights(data.X)
        data = data.with_values(idf.weighted(data.X, factors))
    model, found = registry.fit(method, data, params, rng, progress)
    return FittedMethod(
        method=method, params=found, features=data.features, labels=data.labels, idf=factors, model=model
    )
