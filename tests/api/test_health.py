"""Liveness, readiness and measures over HTTP, also while the service drains or is cut off from the store."""

import os
import re
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from abound.api.app import create_app
from abound.settings import Settings
from tests.support.job_worker import until
from tests.support.served import NDJSON, Served, ndjson, problem, served


def test_ready(service: Served) -> None:
    body = until(lambda: (said := service.http.get("/readyz").json())["lag"] == 0 and said)
    durability = {"appendfsync": "always", "levels": ["log", "fsync"], "warning": None}
    assert "ABOUND_ARTIFACTS_URL" in body.pop("history")
    assert body.pop("version") == metadata.version("abound")
    assert body == {"status": "ready", "log": "connected", "lag": 0, "durability": durability, "keys": False}


def test_draining_is_not_ready_but_answers(service: Served) -> None:
    service.app.state.draining = True
    try:
        answer = service.http.get("/readyz")
        assert "draining" in problem(answer, 503, "not-ready")["detail"]
        assert int(answer.headers["retry-after"]) >= 1
        assert service.http.get("/livez").status_code == 200
        assert service.http.post("/classify", json={"text": "a"}).status_code == 200
    finally:
        service.app.state.draining = False
    assert service.http.get("/readyz").status_code == 200


async def test_not_ready_before_the_first_catch_up() -> None:
    """Asked in the process itself: no connection is accepted that early."""
    app = create_app(Settings(redis_url=SecretStr("unix:///nowhere.sock")))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/livez")).status_code == 200
        answer = await client.get("/readyz")
        assert problem(answer, 503, "not-ready")["retry_after"] > 0
        problem(await client.post("/classify", json={"text": "a"}), 503, "store-unavailable")
    await app.state.parts.replica.store.close()


def test_a_state_that_is_not_trusted_answers_nothing() -> None:
    with served() as service:
        service.http.put("/models/well").raise_for_status()
        service.http.post("/learn", json={"text": "a", "labels": ["x"]}).raise_for_status()
        with service.server.client() as client:
            [log] = client.keys("abound:{default:*}:log")
            client.xadd(log, {"e": b"not an entry", "c": b"00000000"})
        until(lambda: service.http.get("/readyz").status_code != 200)
        assert "cannot be applied" in problem(service.http.get("/readyz"), 503, "not-ready")["detail"]
        for route, body in (("classify", {"text": "a"}), ("learn", {"text": "a", "labels": ["x"]})):
            refused = service.http.post(f"/{route}", json=body)
            assert "cannot be applied" in problem(refused, 503, "not-ready")["detail"]
            assert "retry-after" in refused.headers
            problem(service.http.post(f"/{route}", content=ndjson(body), headers=NDJSON), 503, "not-ready")
        assert service.http.post("/models/well/classify", json={"text": "a"}).status_code == 200
        assert service.learned() == 1


def test_metrics_count_requests_and_describe_models(service: Served) -> None:
    def samples() -> dict[str, float]:
        answer = service.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {
            f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    before = samples()
    for _ in range(7):
        service.http.post("/learn", json={"text": "a", "labels": ["secret label"]}).raise_for_status()
    service.http.post("/models/default/learn", json={})
    for _ in range(3):
        service.http.post("/classify", json={"text": "a"})
    service.http.post("/classify", content=b'{"text": "a"}\n' * 5 + b"{}\n", headers=NDJSON).raise_for_status()
    service.http.post("/classify", json={"instances": [{"text": "a"}] * 40}).raise_for_status()
    service.http.get("/models/default")
    service.http.get("/some/path")
    after = samples()
    counted = {
        "abound_requests_total /learn 200": 7,
        "abound_requests_total /learn 422": 1,
        "abound_requests_total /classify 200": 5,
        "abound_requests_total /models/{model} 200": 1,
        "abound_requests_total other 404": 1,
        "abound_request_duration_seconds_count /learn": 8,
        "abound_request_duration_seconds_count /classify": 4,  # lines take as long as their client sends them
        "abound_append_duration_seconds_count": 7,  # one at a time, so each went out alone
        "abound_classified_instances_total default": 3 + 5 + 40,  # the sixth line has no instance
    }
    assert {name: after[name] - before.get(name, 0) for name in counted} == counted
    described = {
        "abound_model_learned_instances default": service.learned(),
        "abound_log_connected": 1,
        "abound_log_max_bytes default": 8 * 2**30,
        f"abound_build_info {socket.gethostname()} {metadata.version('abound')}": 1,
    }
    assert {name: after[name] for name in described} == described
    assert after["abound_model_memory_bytes default"] > 0
    assert "secret" not in service.http.get("/metrics").text
    assert all(name.startswith(("abound_", "process_", "python_")) for name in after)


SEVERAL = """
import sys
from abound.metrics import Telemetry
telemetry = Telemetry()
for _ in range(int(sys.argv[1])):
    telemetry.meter("/learn").observe(200, 0.002)
telemetry.meter("/learn").observe(422, 30.0)
telemetry.count_classified("a", 1000)
telemetry.set_connected(sys.argv[1] != "5")
sizes = {"learned": int(sys.argv[1]), "memory": 100}
telemetry.set_models({"a": sizes, "gone": sizes})
telemetry.set_models({"a": sizes})
telemetry.flush()
telemetry.flush()
print(telemetry.exposition().decode())
"""


def test_any_process_answers_for_all(tmp_path: Path) -> None:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for n in ("3", "5"):
        command = [sys.executable, "-W", "error", "-c", SEVERAL, n]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = ran.stdout
    assert 'abound_requests_total{route="/learn",status="200"} 8.0' in found
    assert 'abound_requests_total{route="/learn",status="422"} 2.0' in found
    assert 'abound_request_duration_seconds_count{route="/learn"} 10.0' in found
    assert 'abound_request_duration_seconds_bucket{le="0.0025",route="/learn"} 8.0' in found
    assert 'abound_model_learned_instances{model="a"} 5.0' in found
    assert 'abound_classified_instances_total{model="a"} 2000.0' in found
    assert 'model="gone"' not in found
    assert 'abound_model_memory_bytes{model="a"} 200.0' in found
    assert "abound_log_connected 0.0" in found


def test_the_documentation_loads_nothing_from_elsewhere(service: Served) -> None:
    page = service.http.get("/docs").text
    assert not re.search("https?://", page)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 3
    assert all(len(service.http.get(f"/{asset}").raise_for_status().content) > 1000 for asset in loaded)
