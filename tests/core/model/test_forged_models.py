"""A model whose arrays were changed is refused when it is loaded, or serves: no crash, no number that is not finite."""

import random
import subprocess
import sys

import numpy as np
import pytest

from abound_core.instances.record import pack_labels, pack_vector
from abound_core.limits import Limits
from abound_core.model.calibration import Calibration
from abound_core.model.calibration_kernels import MOST_CURVATURE, N_BINS, N_COLUMNS, N_ROWS, learn_pairs
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel
from tests.core.model.forging import CONFIGS, Forgery


def forged(seed: int, n: int, *names: str) -> None:
    """Try ``n`` changes of each model in a process of its own; the last line before its end names the change."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.core.model.forging", str(seed), str(n), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    told = [line.split() for line in lines if line.startswith("done ")]
    assert len(told) == len(names)
    assert min(int(number) for row in told for number in row[-2:]) > n / 10  # refused, served


def test_changed_models_are_refused_or_serve():
    forged(1, 20, *CONFIGS)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CONFIGS)
def test_20_000_changed_models_are_refused_or_serve(name):
    forged(random.randrange(10**6), 20_000 // len(CONFIGS) + 1, name)


@pytest.mark.parametrize("part", ["calibration", "reranker"])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_curvature_is_loaded_the_weights_stay_in_their_range(part, seed):
    forgery, rng = Forgery("vectors reranked"), np.random.default_rng(seed)
    curvature = forgery.arrays[f"{part}/curvature"]
    wild = rng.choice([-MOST_CURVATURE, MOST_CURVATURE, 0.0], curvature.shape)
    assert forgery.try_one(forgery.arrays | {f"{part}/curvature": wild})


def test_an_estimate_that_is_no_number_is_counted_within_the_bins():
    calibration = Calibration(True)
    guarded = np.zeros((N_ROWS + 2, N_BINS, N_COLUMNS))
    arrays = calibration.arrays._replace(bins=guarded[1:-1])
    arrays.weights[:] = np.nan
    learn_pairs(arrays, np.array([0.9, 0.5, 0.3, 0.2, 0.1]), np.zeros(5, np.bool_), np.ones(5, np.bool_))
    assert not guarded[[0, -1]].any()
    assert guarded[1:-1, :, 0].sum() == 10


@pytest.mark.parametrize("name", ["sls", "rows", "fsu calibrated"])
def test_values_at_the_end_of_float32_leave_a_model_that_can_be_loaded(name):
    """No check of records bounds them further; in a model of ``numbers`` raw they are numbers that clients send."""
    model, rng = LiveModel(Forgery(name).config, (1, 2)), random.Random(1)
    made = []
    for _ in range(200):
        words = rng.sample(["a", "b", "c", "d"], 2)
        values = np.array([rng.choice([3.4e38, 1e38, 1.0, 1e-45]) for _ in words], np.float32)
        vector = pack_vector([word.encode() for word in words], values)
        made.append(vector + pack_labels(rng.sample(["x", "y", "z"], 2 if name == "rows" else 1), Limits()))
        if len(made) > 100:
            made[-1] = vector + pack_labels(["x"], Limits(), rejected=["y"], weight=100.0)
    model.begin(b"".join(made), len(made), [Unit(len(made))]).finish()
    assert LiveModel.from_arrays(model.meta(), model.to_arrays(), (3, 4)).digest() == model.digest()
    ranking = model.rank(pack_vector([b"a", b"b"], np.array([3.4e38, 1e38], np.float32)), 5)
    assert len(ranking.scores)
    assert np.isfinite(ranking.scores).all()
