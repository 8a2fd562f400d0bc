"""Files that are longer than any other request: each has the bound of its route, and no other before that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from abound.client import Client, Refused
from abound.client.local_service import own_service
from abound.settings import MIB
from tests.jobs.test_fit import Place, instances

OTHERS = 65_536
"""Bytes of any other body, so that a connection takes little more than 1 MiB of such requests."""

ENVIRONMENT = {
    "ABOUND_MAX_BODY_BYTES": str(OTHERS),
    "ABOUND_MAX_NDJSON_BYTES": str(OTHERS),
    "ABOUND_DATASETS_MAX_BYTES": str(8 * MIB),
    "ABOUND_MAX_IMPORT_BYTES": str(8 * MIB),
}
LEAST = 2 * OTHERS + MIB


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abound.client.local_service._environment", lambda: {**os.environ, **ENVIRONMENT})
        with own_service(data_dir=directory, worker=True) as url, Client(url) as client:
            client.learn("default", {"instances": instances(120)})
            yield Place(client, directory)


def lines(size: int) -> bytes:
    """A data set of a little more than ``size`` bytes."""
    line = json.dumps({"text": "wheat " * 5000, "labels": ["grain"]}).encode() + b"\n"
    return line * (size // len(line) + 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_data_set_may_be_longer_than_other_requests(place: Place, chunked: bool) -> None:
    body = lines(4 * LEAST)
    if chunked:
        told = place.client.put_dataset("long.jsonl", pieces=(body[at : at + 999] for at in range(0, len(body), 999)))
    else:
        answer = httpx.put(f"{place.client.url}/datasets/long.jsonl", content=body, timeout=60)
        assert answer.status_code == 201, answer.text
        told = answer.json()
    assert told["bytes"] == len(body)


def test_a_data_set_over_its_own_bound_is_refused(place: Place) -> None:
    body = lines(8 * MIB)
    with pytest.raises(Refused, match="8388608 bytes"):
        place.client.put_dataset("longer.jsonl", pieces=(body[at : at + MIB] for at in range(0, len(body), MIB)))


def test_the_file_of_a_version_may_be_longer_than_other_requests(place: Place) -> None:
    job = place.done("ogeec", dim=2000, learners=3)
    file = b"".join(place.client.export_version("default", job["version"]))
    assert len(file) > 2 * LEAST
    card = place.client.import_version("default", (file[at : at + MIB] for at in range(0, len(file), MIB)))
    assert card["digest"] == place.client.version("default", job["version"])["digest"]
