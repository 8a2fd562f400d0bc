"""How many classes a model takes: ``max_classes``, and what its index can hold."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from abound.api.learn import PendingClasses, RequestAdditions
from abound_core.config import ModelConfig
from abound_core.errors import Conflict, OutcomeUnknown
from abound_core.index.index import Index
from abound_core.index.params import IndexParams
from abound_core.model.live_model import LiveModel
from tests.support.served import NDJSON, lines, ndjson, served


def model(config: ModelConfig) -> Any:
    return SimpleNamespace(live=LiveModel(config, (1, 2)))


@pytest.mark.parametrize("update", ["fsu", "sls"])
def test_an_index_learns_the_last_class_that_it_says_it_can_hold(update: str) -> None:
    index = Index(IndexParams.of(ModelConfig(update=update)))
    most = index.most_classes or 2**24
    ids, values = np.zeros(1, np.int32), np.ones(1, np.float32)
    for class_id, connections in ((most - 1, 1), (most, 1 if index.most_classes is None else 0)):
        before = index.n_connections
        index.learn(ids, values, np.array([class_id], np.int32))
        assert index.n_connections - before == connections


@pytest.mark.parametrize(("update", "max_classes", "refused"), [("sls", None, 4), ("sls", 3, 3), ("fsu", None, None)])
def test_a_class_that_the_index_could_not_learn_is_refused(update, max_classes, refused, monkeypatch):
    # read where it is asked, compiled elsewhere
    monkeypatch.setattr("abound_core.index.layout_kernels.CLASS_MASK", np.uint64(3))
    new = RequestAdditions(PendingClasses(model(ModelConfig(update=update, max_classes=max_classes))))
    for n, label in enumerate("abcdefg"):
        if n == refused:
            with pytest.raises(Conflict, match=f"of at most {refused}: '{label}' is new"):
                new.check([label])
            break
        new.check([label])
    else:
        assert refused is None


async def test_classes_that_are_on_their_way_count_for_all_requests() -> None:
    taught = model(ModelConfig(max_classes=3))
    new = PendingClasses(taught)
    with new.track_request(60) as first:
        first.check(["a", "b"])
        lacks = "0 classes and 2 more pending of at most 3: 'c' is new"
        with pytest.raises(Conflict, match=lacks), new.track_request(60) as second:
            second.check(["a", "c", "d"])  # one is on its way already
        with new.track_request(60) as third:
            third.check(["c"])  # what was refused counts no more
        with pytest.raises(Conflict), new.track_request(60) as late:
            late.check(["d"])  # what may be in the log and is not learned yet still does
        taught.live.labels.add(b"c")
    with pytest.raises(Conflict, match="1 classes and 2 more"), new.track_request(60) as last:
        last.check(["d"])


def test_a_line_that_is_refused_counts_for_nothing() -> None:
    def line(label: str, dimension: int) -> dict[str, Any]:
        return {"vector": [1.0] * dimension, "labels": [label]}

    def statuses(*sent: dict[str, Any]) -> list[int]:
        answer = service.http.post("/models/bounded/learn", content=ndjson(*sent), headers=NDJSON)
        return [one.get("status", 200) for one in lines(answer)]

    with served() as service:
        service.http.put("/models/bounded", json={"update": "sls", "max_classes": 2}).raise_for_status()
        assert statuses(line("a", 4), line("b", 5), line("c", 4), line("d", 4)) == [200, 422, 200, 409]
        service.http.delete("/models/bounded").raise_for_status()
        service.http.put("/models/bounded", json={"update": "sls", "max_classes": 1}).raise_for_status()
        text = {"text": "wheat", "labels": ["a"]}
        assert statuses(text, line("b", 4), line("a", 5)) == [200, 409, 200]


async def test_what_never_came_into_the_log_counts_no_more_after_a_while() -> None:
    new = PendingClasses(model(ModelConfig(max_classes=1)))
    with contextlib.suppress(OutcomeUnknown), new.track_request(0.0) as lost:
        lost.check(["a"])
        raise OutcomeUnknown("the store went away")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with new.track_request(60) as other:
        other.check(["b"])


def test_batches_at_one_time_overrun_no_bound() -> None:
    with served() as service:
        service.http.put("/models/bounded", json={"max_classes": 50}).raise_for_status()

        def learn(number: int) -> int:
            batch = [{"text": "wheat", "labels": [f"class {number}-{i}"]} for i in range(20)]
            body = {"instances": batch, "wait": "log" if number % 2 else "applied"}
            return httpx.post(f"{service.url}/models/bounded/learn", json=body, timeout=60).status_code

        with ThreadPoolExecutor(32) as threads:
            statuses = list(threads.map(learn, range(32)))
        assert {status for status in statuses if status >= 300} == {409}
        classes = service.http.get("/models/bounded/stats").json()["classes"]
        assert 0 < classes <= 50
