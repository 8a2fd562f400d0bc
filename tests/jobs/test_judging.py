"""How a version is judged, and that its numbers are the same wherever they are computed."""

import numpy as np
import pytest
from scipy import sparse

from abound.jobs import fit as fitting
from abound.jobs.fit import baseline_metrics, held_out_metrics
from abound.jobs.methods import METHODS
from abound.processes.parallel import parallel
from abound_core.config import ModelConfig
from abound_core.instances.data_formats import DatasetInstance
from abound_core.instances.record import add_details, pack_labels
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import DATASET_LIMITS
from abound_core.methods import fitted, registry
from abound_core.methods.embeddings.ridge import Ridge
from abound_core.methods.training.gather import gather
from abound_core.methods.training.progress import no_progress
from tests.core.methods.toy import SECRET, from_log, made


@pytest.mark.parametrize("n_last", [0, 5, 60], ids=["none last", "some last", "all last"])
def test_names_of_labels_are_never_held_out(n_last: int) -> None:
    vectorize = Vectorizer(ModelConfig(), DATASET_LIMITS).vectorize
    instances, names = [], []
    for i in range(200):
        vector = vectorize(None, f"word{i % 10}")
        instances.append(vector + pack_labels([f"label {i % 10}"], DATASET_LIMITS))
    for i in range(60):
        vector = vectorize(None, f"unheard{i}")
        names.append(add_details(vector + pack_labels([f"other {i}"], DATASET_LIMITS), b"{}"))
    first, last = names[: 60 - n_last], names[60 - n_last :]
    records = [*instances[:180], *first, *instances[180:190], *last[:3], *instances[190:], *last[3:]]
    data = from_log(records, dense_bytes=1)
    given = METHODS["swnn"].check({"S": 5}), data, True, ModelConfig(), no_progress, fitting.Stopwatch()
    model, metrics = fitting.evaluate_and_fit(*given)
    assert metrics["held_out"] == 20
    assert metrics["R@1"] == metrics["live R@1"] == 1.0
    assert model.model.X.shape[0] == len(records)  # type: ignore[attr-defined]
    older, newest = data.hold_out(20)
    assert (older.X.shape[0], newest.X.shape[0]) == (240, 20)
    assert not newest.names.any()
    assert older.names.sum() == 60


def test_the_baseline_is_the_live_index_on_the_same_instances() -> None:
    data = made(320, seed=3)
    older, newest = data.first(20), data.last(300)
    found = baseline_metrics(ModelConfig(), older, newest, no_progress)
    params = registry.params_of("ff", {"margin": 0.0})  # learns as the live index does
    same = fitted.fit("ff", older, params, np.random.default_rng(0), no_progress, use_idf=False)
    expected = held_out_metrics(same, older, newest, no_progress)
    assert found == pytest.approx({f"live {name}": expected[name] for name in ("R@1", "R@5", "MRR")})
    assert 0.3 < found["live R@1"] < found["live MRR"] < 1
    assert baseline_metrics(ModelConfig(update="sls"), older, newest, no_progress) != found


def test_the_baseline_learns_dense_vectors_too() -> None:
    def instance(line: int) -> DatasetInstance:
        label = line % 5
        vector = [float(line % 7), *(9.0 * (place == label) for place in range(5))]
        return DatasetInstance(features=b'{"same": 1}', vector=vector, labels=(f"label {label}",), line=line)

    config, rows = ModelConfig(update="sls"), [instance(line) for line in range(300)]
    vectorizer = Vectorizer(config, DATASET_LIMITS)
    blind, seeing = (gather(rows, vectorizer, DATASET_LIMITS, SECRET, dense_bytes=most) for most in (0, 2**20))
    found = [
        baseline_metrics(config, one.first(200), one.last(100), no_progress)["live R@1"] for one in (blind, seeing)
    ]
    assert found[0] == pytest.approx(0.2, abs=0.1)
    assert found[1] == 1.0


def test_least_squares_are_the_same_on_any_number_of_threads() -> None:
    """BLAS adds up in another order where it has more threads, so it has one."""
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix(sparse.random(1200, 900, 0.02, random_state=rng, dtype=np.float32))
    targets = rng.standard_normal((1200, 20))
    found = []
    for threads in (1, 2, 4):
        with parallel(None, threads):
            found.append(Ridge(X, 1.0).fit(targets, no_progress))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
