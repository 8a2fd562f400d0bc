"""A fitted method with everything that it takes to answer: the names of columns, the idf weights, the method's model.

Its arrays are what an artifact holds, with ``meta`` beside them; there is no pickle anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from abound.core.errors import Damaged, InvalidInstance
from abound.core.instances.vocabulary import Vocabulary
from abound.core.methods import registry
from abound.core.methods.neighbors.nearest import Graph
from abound.core.methods.training import array_checks, idf
from abound.core.methods.training.idf import Weights
from abound.core.methods.training.matrices import Csr, Matrices, vector_rows
from abound.core.methods.training.progress import Progress
from abound.core.metrics import Rankings

WRONG = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError, InvalidInstance)
"""What loading may meet in arrays that do not fit together, besides Damaged."""

OPAQUE = "model/graph/"
"""Arrays below this name are read by a library that believes them: load none that came from elsewhere unchecked."""


def check_opaque(arrays: Mapping[str, npt.NDArray[Any]], progress: Progress) -> None:
    """Damaged unless each graph is, byte for byte, the one that is made here of its vectors; costs making it.

    Raises
    ------
    Damaged
    InvalidInstance
        What makes graphs is not installed.
    """
    for name in (one for one in arrays if one.startswith(OPAQUE)):
        number = name.removeprefix(OPAQUE)
        vectors = array_checks.taken(arrays, f"model/vectors/{number}", np.float32, None, None)
        graph = array_checks.taken(arrays, name, np.uint8, None)
        if not vectors.size or not np.isfinite(vectors).all():
            raise Damaged(f"the vectors of the graph {number} are none")
        if not np.array_equal(Graph.made(np.ascontiguousarray(vectors), progress).saved(), graph):
            raise Damaged(f"the graph {number} is not the one that is made of its vectors here; fit the version here")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fitted:
    """A method that has learned.

    Attributes
    ----------
    method : str
        Its name in the registry.
    params : Params of the method
    features : Vocabulary
        Column of each feature key.
    labels : list of str
    idf : float32 array, shape (d,), or None
        Factor of each feature; None: vectors are taken as they are.
    model : Model
    """

    method: str
    params: Any
    features: Vocabulary
    labels: list[str]
    idf: Weights | None
    model: registry.Model

    def weigh(self, X: Csr) -> Csr:
        """Rows as the model wants them: with the idf weights, where it has any."""
        return X if self.idf is None else idf.weighted(X, self.idf)

    def rank(self, X: Csr, k: int) -> Rankings:
        """The best ``k`` labels for rows in the columns of ``features``, before idf."""
        return self.model.rank(self.weigh(X), k)

    def rank_vectors(self, vectors: Iterable[bytes], k: int) -> Rankings:
        """The best ``k`` labels for vectors of the service (``core/instances/record.py``); unknown features count for
        nothing."""
        return self.rank(vector_rows(vectors, self.features), k)

    def meta(self) -> dict[str, Any]:
        """What goes beside the arrays: plain JSON values."""
        return {"method": self.method, "params": asdict(self.params)}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as named arrays; ``from_arrays`` gives an equal one."""
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
    ) -> Fitted:
        """What ``meta`` and ``to_arrays`` described; Damaged when they do not fit together."""

        def under(folder: str) -> dict[str, npt.NDArray[Any]]:
            return {name[len(folder) :]: array for name, array in arrays.items() if name.startswith(folder)}

        try:
            ends = np.cumsum(array_checks.taken(arrays, "labels/lengths", np.uint16, None), dtype=np.int64).tolist()
            text = array_checks.taken(arrays, "labels/bytes", np.uint8, None).tobytes()
            features = Vocabulary.from_arrays(secret, under("features/"))
            factors = array_checks.taken(arrays, "idf", np.float32, len(features)) if "idf" in arrays else None
            if ends[-1:] != [len(text)]:
                raise Damaged("the names or the idf weights of an artifact do not fit together")
            return cls(
                method=meta["method"],
                params=registry.params_of(meta["method"], meta["params"]),
                features=features,
                labels=[text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)],
                idf=factors,
                model=registry.method_of(meta["method"]).load(under("model/"), len(features), len(ends)),
            )
        except WRONG as error:
            raise Damaged(f"the arrays of an artifact do not fit together: {error!r}") from error


def fit(
    method: str,
    data: Matrices,
    params: Any,
    rng: np.random.Generator,
    progress: Progress,
    *,
    use_idf: bool | None = None,
    memory: int | None = None,
) -> Fitted:
    """Fit a method, with idf weights from the training vectors where wanted.

    Parameters
    ----------
    use_idf : bool or None
        None: where the data came as text and the method has a use for them.
    method, data, params, rng, progress, memory
        See ``registry.fit``, which also says what is raised.
    """
    factors = None
    suits = registry.method_of(method).idf
    if use_idf and not suits:
        raise InvalidInstance(f"{method} takes no idf weights", "idf")
    if data.text and suits if use_idf is None else use_idf:
        factors = idf.weights(data.X)
        data = data.with_values(idf.weighted(data.X, factors))
    model, found = registry.fit(method, data, params, rng, progress, memory)
    return Fitted(method=method, params=found, features=data.features, labels=data.labels, idf=factors, model=model)
