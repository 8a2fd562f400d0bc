"""Kernels are compiled before they are asked for: those of the default model before it is ready."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

from abound.processes.kernel_cache import set_cache_dir

set_cache_dir()
import contextlib
import json

from numba.core.dispatcher import Dispatcher

from abound_core.model.live_model import DEFAULT_GROUPS, READING_GROUP, STATE_GROUP, warmup
from abound.processes import kernel_compiler as kernels
from tests.support.served import NDJSON, served


def loaded():
    found = set()
    for name, module in sys.modules.items():
        if name.startswith("abound_core."):
            for kernel in vars(module).values():
                if isinstance(kernel, Dispatcher):
                    found |= {f"{kernel.py_func.__module__}.{kernel.py_func.__name__}{key}" for key in kernel.overloads}
    return found


kernels.load = lambda: None
warmup(*DEFAULT_GROUPS, READING_GROUP, STATE_GROUP)
before = loaded()
with served() as service:
    def post(path, body, **more):
        answer = service.http.post(path, **({"json": body} if isinstance(body, dict) else {"content": body}), **more)
        assert answer.status_code == 200, answer.text
        return answer
    features = {"price": 2.5, "tags": ["a", "b"], "where": "caf\\\\u00e9", "new": True}
    wheat = {"text": "Wheat is dear", "features": features}
    post("/learn", {**wheat, "labels": ["grain", "trade"], "key": "one"})
    post("/learn", {**wheat, "labels": ["grain", "trade"], "key": "one"})
    post("/learn", {"instances": [{**wheat, "labels": ["grain"]}, {"text": "oil", "labels": ["crude"]}]})
    lines = b"".join(json.dumps({**wheat, "labels": [f"l{i}"]}).encode() + b"\\n" for i in range(300))
    post("/learn", lines, headers=NDJSON)
    post("/classify", lines.replace(b', "labels"', b', "include"'), headers=NDJSON)
    asked = {}, {"explain": True}, {"include": ["grain"]}, {"exclude": ["grain"], "threshold": 0.1}, {"remember": True}
    for more in asked:
        answer = post("/classify", {**wheat, **more}).json()
    post("/learn", {"prediction": answer["id"], "labels": ["grain"]})
    configs = {"memory": 5}, {"boolean": True}, {"w_min": 0, "leak": False}, {"max_features": 3}, {"negative": "split"}
    for config in configs:
        name = next(iter(config))
        assert service.http.put(f"/models/{name}", json=config).is_success
        for text in ("a b c", "d e f"):
            post(f"/models/{name}/learn", {"text": text, "labels": ["x", "y"]})
        post(f"/models/{name}/classify", {"text": "a", "explain": True})
    assert service.http.get("/models/default").json()["digest"]
    service.http.get("/models/default/stats").raise_for_status()
    assert service.http.get("/models/default/labels?prefix=l").json()["labels"]
    print(sorted(loaded() - before))

    def plain(i):
        return {}

    def learn(model, n, config, *bodies):
        assert service.http.put(f"/models/{model}", json=config).is_success
        for i in range(n):
            for body in bodies:
                post(f"/models/{model}/learn", {"text": f"a b{i}", "labels": ["x", f"y{i}"], **body(i)})

    @contextlib.contextmanager
    def only(group):
        warmup(group)
        before = loaded()
        yield
        print(sorted(loaded() - before))

    with only("sls"):
        learn("rows", 9, {"update": "sls", "rerank": False}, plain)
        assert service.http.get("/models/rows/stats").json()["in_rows"]
        post("/models/rows/classify", {"text": "a", "explain": True})
        post("/models/rows/learn", {"text": "a", "labels": ["x"]})
        service.http.get("/metrics").raise_for_status()  # with the memory of rows that become lists
        assert service.http.get("/models/rows").json()["digest"]
        config = {"update": "sls", "rerank": False, "rows": False, "max_features": 3}
        learn("lists", 2, config, lambda i: {"text": ("a b c", "d e f")[i]})
        post("/models/lists/classify", {"text": "a", "explain": True})
    with only("plain"):
        for update in ("fsu", "sls"):
            learn(f"p{update}", 9, {"update": update, "calibrate": False, "rerank": False}, plain)
            post(f"/models/p{update}/classify", {"text": "a"})
    with only("reranked"):
        for calibrate in (False, True):
            name = f"/models/r{calibrate}"
            learn(f"r{calibrate}", 9, {"update": "sls", "calibrate": calibrate}, lambda i: {"vector": [1, i]}, plain)
            post(f"{name}/classify", {"text": "a", "vector": [1, 2], "explain": True, "exclude": ["y1"]})
            post(f"{name}/classify", {"vector": [1, 2], "min_probability": 0.1})
            assert service.http.get(name).json()["digest"]
    with only("decided"):
        for update in ("fsu", "sls"):
            learn(f"d{update}", 9, {"update": update, "decide": {}}, plain, lambda i: {"labels": [], "none": True})
            post(f"/models/d{update}/classify", {"text": "a", "exclude": ["y1"]})
            assert service.http.get(f"/models/d{update}/stats").json()["decisions"]["all"]["n"] == 18
        post("/models/dsls/learn", {"text": "a", "vector": [1, 2], "labels": ["x"]})
        post("/models/dsls/classify", {"vector": [1, 2]})
"""


@pytest.mark.timeout(600)  # the first run on a machine compiles
def test_a_model_asks_for_no_kernel_outside_of_its_groups() -> None:
    """A kernel that is first asked for by a request would hold that request up for as long as compiling takes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=560
    )
    assert done.returncode == 0, done.stderr
    lacking = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lacking == ["[]"] * 5  # the default model, sls, those without probabilities, re-ranking ones, deciding ones
