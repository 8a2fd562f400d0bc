"""How long a replica calls itself ready without its log: for ever, unless a bound is set."""

import time

import pytest

from tests.support.served import served


@pytest.mark.parametrize(("bound", "status"), [(None, 200), (0.2, 503)])
def test_a_replica_cut_off_is_ready_up_to_the_bound(bound, status):
    with served(max_staleness=bound) as service:
        assert service.http.get("/readyz").json()["log"] == "connected"
        service.server.kill()
        deadline = time.monotonic() + 60
        while True:
            answer = service.http.get("/readyz")
            cut_off = answer.json().get("since", 0) > 0.3 or answer.status_code == 503
            if cut_off or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert cut_off
        assert answer.status_code == status
        assert ("more than max_staleness (0.2 s)" in answer.text) is (bound is not None)
        assert service.http.post("/classify", json={"text": "wheat"}).status_code == 200
