"""The program that measures kernels: its streams, and the comparison of two commits."""

import subprocess
import sys

import numpy as np
import pytest

from abound_core.config import ModelConfig
from benchmarks.kernel import DATA_SET, MEMORY, ROOT, Bench, compared, stream_of

WIDE = np.uint64(1 << 54)


def figures(seconds, digest="a"):
    return {"learn_per_s": 1 / seconds, "classify_per_s": 2 / seconds, "digest": digest, "names_digest": digest}


def test_a_comparison_has_the_time_of_this_code_as_a_multiple_of_the_others():
    this = {"ads fsu": figures(1.0), "ads sls": figures(3.0, "b")}
    other = {"ads fsu": figures(2.0), "ads sls": figures(2.0, "c")}
    _, first, second = compared(this, other).splitlines()
    assert first.split() == ["ads", "fsu", "0.500", "0.500", "same", "digests"]
    assert second.split() == ["ads", "sls", "1.500", "1.500", "OTHER", "DIGESTS"]


@pytest.mark.long  # compiles kernels of the benchmark
def test_nearly_all_votes_of_the_wide_stream_come_from_wide_blocks():
    stream = stream_of("wide", 2_000, None)
    bench = Bench(stream, ModelConfig(w_min=0.01, d_max=25, margin=0.5, memory=MEMORY["wide"]))
    headers = bench.learned.arrays.headers[::2][stream.ids]
    votes = np.minimum(headers >> np.uint64(32) & np.uint64(0xFFFF), np.uint64(25))
    assert votes[headers & WIDE != 0].sum() > 0.8 * votes.sum()


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
