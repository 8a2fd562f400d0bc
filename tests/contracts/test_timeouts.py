"""Who waits for whom, and that this is long enough: balancer, probes, drain, clients, and the parts of the service."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_a_client_waits_longer_than_a_replica_may_take() -> None:
    assert requests.DATASET_SECONDS > CHECK_SECONDS
    assert min(requests.ACTIVATE_SECONDS, requests.IMPORT_SECONDS) > Settings().prepare_seconds
    assert SnapshotParams().wanted_seconds < requests.SNAPSHOT_SECONDS


def test_several_renewals_may_be_late_before_a_process_is_taken_for_dead() -> None:
    # One renewal of a lease may time out; it is renewed at every quarter of its time.
    assert 2 * LEASE_SECONDS / 4 + StoreParams().reply_seconds < LEASE_SECONDS
    every = 2 * heartbeat.TICK_SECONDS  # a replica without news publishes its status at every other tick
    assert 3 * every <= FRESH_SECONDS
    assert pins.PIN_SECONDS >= 10 * job_process.RENEW_SECONDS


def test_a_replica_is_silent_later_than_it_is_late() -> None:
    """Until then an activation waits for it; its status stays for operators much longer."""
    assert FRESH_SECONDS < SILENT_SECONDS < STALE_SECONDS
    # By then a replica that was killed a moment ago counts as gone.
    assert heartbeat.CLEAR_TICKS * heartbeat.TICK_SECONDS > FRESH_SECONDS


def test_a_version_is_published_after_activations_that_take_their_whole_time() -> None:
    assert 3 * Settings().prepare_seconds <= activation.PUBLISH_SECONDS


def test_a_silent_artifact_store_delays_a_request_by_ten_seconds_at_most() -> None:
    assert 2 * artifact_times.PATIENCE_SECONDS <= 10
    assert artifact_times.JOIN_SECONDS < artifact_times.PATIENCE_SECONDS


def test_nothing_that_is_still_written_is_collected() -> None:
    assert artifact_times.WRITING_SECONDS < artifact_times.UNFINISHED_SECONDS <= garbage.UNREFERENCED_SECONDS


def test_each_part_stops_before_the_supervisor_kills_its_process() -> None:
    most = Settings().stop_seconds + supervisor.SPARE_SECONDS
    assert most > max(runner.STOP_SECONDS, dispatcher.STOP_SECONDS, replica.STOP_RECORDING_SECONDS)


def test_nobody_takes_a_job_that_stands_still_for_a_broken_connection() -> None:
    """The comments that keep the stream of its events alive come more often than anybody gives up."""
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    patience = re.findall(
        r"^    timeout (?:server|client) (\d+)s$", text.partition("backend classify")[0], re.MULTILINE
    )
    assert len(patience) == 2
    assert min(map(int, patience)) > 2 * _PING_INTERVAL
