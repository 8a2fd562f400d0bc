"""Who waits for whom, and that this is long enough: balancer, probes, drain, clients, and the parts of the service."""

import re
from pathlib import Path

import pytest
import yaml
from fastapi.sse import _PING_INTERVAL

from abound.api.times import APPLY_SECONDS, MIN_OFFSET_SECONDS
from abound.artifacts import times as artifact_times
from abound.client import requests
from abound.datasets.repository import CHECK_SECONDS
from abound.history import garbage, pins
from abound.jobs import dispatcher, job_process
from abound.processes import kernel_compiler, supervisor
from abound.replica import heartbeat, model_directory, replica
from abound.settings import Settings
from abound.state.replica_status import FRESH_SECONDS, SILENT_SECONDS, STALE_SECONDS
from abound.state.snapshots import SnapshotParams
from abound.store.client import StoreParams
from abound.store.lease import LEASE_SECONDS
from abound.versions import activation
from abound.versions.promotion import runner
from tests.contracts.manifests import one_of, rendered

ROOT = Path(__file__).parents[2]
KILLED_SECONDS = Settings().stop_seconds + supervisor.SPARE_SECONDS


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
    others, classify = map(int, re.findall(r"^    timeout server (\d+)s$", text, re.MULTILINE))
    assert classify > model_directory.ARRIVAL_SECONDS + MIN_OFFSET_SECONDS
    assert others > model_directory.ARRIVAL_SECONDS + APPLY_SECONDS
    assert others > model_directory.CATALOG_SECONDS + kernel_compiler.PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        pytest.param(*pair, id=name)
        for name, pair in {
            "a client waits for the check of a data set": (CHECK_SECONDS, requests.DATASET_SECONDS),
            "a client waits for an activation": (Settings().prepare_seconds, requests.ACTIVATE_SECONDS),
            "a client waits for an import": (Settings().prepare_seconds, requests.IMPORT_SECONDS),
            "a client waits for a snapshot": (SnapshotParams().wanted_seconds, requests.SNAPSHOT_SECONDS),
            # It is renewed at every quarter of its time.
            "a renewal of a lease may time out": (2 * LEASE_SECONDS / 4 + StoreParams().reply_seconds, LEASE_SECONDS),
            # A replica without news publishes its status at every other tick.
            "a replica may be late twice": (3 * 2 * heartbeat.TICK_SECONDS, FRESH_SECONDS),
            "several renewals of a pin may be late": (10 * job_process.RENEW_SECONDS, pins.PIN_SECONDS),
            "an activation waits for a late replica": (FRESH_SECONDS, SILENT_SECONDS),
            "operators see a silent replica": (SILENT_SECONDS, STALE_SECONDS),
            "a killed replica counts as gone": (FRESH_SECONDS, heartbeat.CLEAR_TICKS * heartbeat.TICK_SECONDS),
            "a version outlasts activations": (3 * Settings().prepare_seconds, activation.PUBLISH_SECONDS),
            "a silent artifact store delays a request": (2 * artifact_times.PATIENCE_SECONDS, 10),
            "joining ends before a request does": (artifact_times.JOIN_SECONDS, artifact_times.PATIENCE_SECONDS),
            "what is written is not swept": (artifact_times.WRITING_SECONDS, artifact_times.UNFINISHED_SECONDS),
            "nor collected": (artifact_times.UNFINISHED_SECONDS, garbage.UNREFERENCED_SECONDS),
            "contests stop before the kill": (runner.STOP_SECONDS, KILLED_SECONDS),
            "jobs stop before the kill": (dispatcher.STOP_SECONDS, KILLED_SECONDS),
            "recording stops before the kill": (replica.STOP_RECORDING_SECONDS, KILLED_SECONDS),
        }.items()
    ],
)
def test_who_waits_for_another_waits_longer(shorter: float, longer: float) -> None:
    assert shorter <= longer


def test_nobody_takes_a_job_that_stands_still_for_a_broken_connection() -> None:
    """The comments that keep the stream of its events alive come more often than anybody gives up."""
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    patience = re.findall(
        r"^    timeout (?:server|client) (\d+)s$", text.partition("backend classify")[0], re.MULTILINE
    )
    assert len(patience) == 2
    assert min(map(int, patience)) > 2 * _PING_INTERVAL
