"""The program that measures kernels: its streams, and the comparison of two commits."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.kernel import DATA_SET, ROOT, stream_of


def test_the_stream_of_a_data_set_is_the_beginning_of_its_training_part(tmp_path):
    arrays = {"starts": [0, 2, 3, 5], "ids": [0, 1, 1, 0, 2], "values": [1, 2, 3, 4, 5]}
    arrays |= {"label_starts": [0, 1, 3, 4], "label_ids": [0, 0, 1, 2]}
    np.savez(tmp_path / "set.npz", **{f"train_{name}": np.array(array) for name, array in arrays.items()})
    stream = stream_of(DATA_SET, 2, tmp_path / "set.npz")
    assert [array.tolist() for array in stream] == [[0, 2, 3], [0, 1, 1], [1, 2, 3], [0, 1, 3], [0, 0, 1]]
    assert stream_of(DATA_SET, None, tmp_path / "set.npz").n_instances == 3


@pytest.mark.long
@pytest.mark.timeout(1800)  # compiles the kernels of both
def test_this_code_is_compared_with_a_commit():
    words = ["--against", "HEAD", "--stream", "wide", "--instances", "100", "--turns", "1"]
    run = [sys.executable, "-m", "benchmarks.kernel", *words]
    done = subprocess.run(run, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    title, *lines = done.stdout.splitlines()
    assert title.split() == ["names", "names", "again", "learn", "grow", "again", "classify"]
    assert [line.split()[:2] for line in lines] == [["wide", "fsu"], ["wide", "sls"]]
    assert all(line.endswith("same digests") for line in lines)
