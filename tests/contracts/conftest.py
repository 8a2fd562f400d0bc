import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from abound.api import classify
from abound.processes.lifetime import dies_with_parent
from tests.support.job_worker import until_worker
from tests.support.served import Served, served


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("artifacts")
    with pytest.MonkeyPatch.context() as patch, served(artifacts_url=str(place)) as service:
        patch.setattr(classify, "MIN_OFFSET_SECONDS", 0.1)
        body = {"text": "wheat prices rise", "labels": ["grain", "wheat"]}
        service.http.post("/learn", json=body).raise_for_status()
        environment = os.environ | {"ABOUND_REDIS_URL": service.server.url, "ABOUND_ARTIFACTS_URL": str(place)}
        words = [sys.executable, "-m", "abound.worker"]
        with subprocess.Popen(words, env=environment, preexec_fn=dies_with_parent()) as worker:
            try:
                until_worker(service.url)
                yield service
            finally:
                worker.terminate()
