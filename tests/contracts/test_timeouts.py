"""Who waits for whom, and that this is long enough: balancer, probes, drain."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from fastapi.sse import _PING_INTERVAL

from abound.api.learn_service import APPLY_SECONDS
from abound.api.routes.classify import MIN_OFFSET_SECONDS
from abound.datasets.repository import CHECK_SECONDS
from abound.settings import Settings
from abound.state.snapshots import SnapshotParams
from tests.contracts.manifests import one_of, rendered
from tests.contracts.programs import needs

ROOT = Path(__file__).parents[2]


def test_a_replica_drains_longer_than_the_balancer_needs_to_see_it() -> None:
    """Until then it is still sent requests."""
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["replica"]
    checks = re.findall(r"check inter (\d+)ms fall (\d+)", (ROOT / "docker" / "haproxy.cfg").read_text())
    assert len(checks) == 2
    for milliseconds, times in checks:
        assert float(compose["environment"]["ABOUND_DRAIN_SECONDS"]) > 2 * int(milliseconds) * int(times) / 1000
    pod = one_of(rendered("base"), "Deployment", "replica")["spec"]["template"]["spec"]
    settings = one_of(rendered("base"), "ConfigMap", "abound")["data"]
    probe = pod["containers"][0]["readinessProbe"]
    drain = float(settings["ABOUND_DRAIN_SECONDS"])
    assert drain > probe["periodSeconds"] * probe["failureThreshold"]
    assert pod["terminationGracePeriodSeconds"] > drain + float(settings["ABOUND_STOP_SECONDS"])


def test_the_balancer_waits_longer_than_a_replica_may_take() -> None:
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    [waits] = re.findall(r"http-request set-timeout server (\d+)m ", text)
    longest = (CHECK_SECONDS, Settings().prepare_seconds, SnapshotParams().wanted_seconds)
    assert 60 * int(waits) > max(longest)
    [others] = re.findall(r"^    timeout server (\d+)s$", text.partition("backend classify")[0], re.MULTILINE)
    assert int(others) > APPLY_SECONDS + MIN_OFFSET_SECONDS


def test_nobody_takes_a_job_that_stands_still_for_a_broken_connection() -> None:
    """The comments that keep the stream of its events alive come more often than anybody gives up."""
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    patience = re.findall(
        r"^    timeout (?:server|client) (\d+)s$", text.partition("backend classify")[0], re.MULTILINE
    )
    assert len(patience) == 2
    assert min(map(int, patience)) > 2 * _PING_INTERVAL


def test_the_load_balancer_takes_its_configuration() -> None:
    done = subprocess.run(
        [needs("haproxy"), "-c", "-f", str(ROOT / "docker" / "haproxy.cfg")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
