"""Every process killed at once while it learns: what was acknowledged is there, and answers stay the same bytes."""

import sys

import pytest

from benchmarks.kill import kill_rounds
from benchmarks.serving import Serving
from service import identity

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def test_what_was_acknowledged_outlives_two_kills(tmp_path):
    loss = kill_rounds(rounds=1, processes=2, work=tmp_path, seed=7, most_events=300)
    assert loss.kills == 2
    assert len(loss.acknowledged) >= 100
    assert (loss.lost, loss.behind, loss.twice, loss.changed) == ([], [], [], [])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_what_was_acknowledged_outlives_many_kills(tmp_path):
    loss = kill_rounds(rounds=10, processes=2, work=tmp_path, seed=8)
    assert loss.kills == 23
    assert len(loss.acknowledged) >= 2000
    assert (loss.lost, loss.behind, loss.twice, loss.changed) == ([], [], [], [])


def test_nothing_outlives_the_parent(tmp_path):
    with Serving(tmp_path / "data", "--processes", "2", output=tmp_path / "output") as serving:
        serving.until_ready()
        pids = {pid: identity.started(pid) for pid in serving.pids()}
        assert len(pids) >= 4  # the parent, a store, at least one replica, and another or the worker
        serving.process.kill()
        serving.process.wait()
        with Serving(tmp_path / "data", output=tmp_path / "output") as again:
            again.until_ready()
            assert [pid for pid, start in pids.items() if identity.started(pid) == start] == []
            assert again.stop() == 0
