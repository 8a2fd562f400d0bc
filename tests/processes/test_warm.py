"""Kernels are compiled before they are asked for: those of the default model before it is ready."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

from abound.processes.kernel_cache import set_cache_dir

set_cache_dir()
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

    warmup("sls")
    before = loaded()
    assert service.http.put("/models/rows", json={"update": "sls", "rerank": False}).is_success
    for n in range(9):
        post("/models/rows/learn", {"text": f"a b{n}", "labels": ["x", f"y{n}"]})
    assert service.http.get("/models/rows/stats").json()["in_rows"]
    post("/models/rows/classify", {"text": "a", "explain": True})
    assert service.http.get("/models/rows").json()["digest"]
    config = {"update": "sls", "rerank": False, "rows": False, "max_features": 3}
    assert service.http.put("/models/lists", json=config).is_success
    for text in ("a b c", "d e f"):
        post("/models/lists/learn", {"text": text, "labels": ["x", "y"]})
    post("/models/lists/classify", {"text": "a", "explain": True})
    print(sorted(loaded() - before))

    warmup("plain")
    before = loaded()
    for update in ("fsu", "sls"):
        config = {"update": update, "calibrate": False, "rerank": False}
        assert service.http.put(f"/models/p{update}", json=config).is_success
        for n in range(9):
            post(f"/models/p{update}/learn", {"text": f"a b{n}", "labels": ["x", f"y{n}"]})
        post(f"/models/p{update}/classify", {"text": "a"})
    print(sorted(loaded() - before))

    warmup("reranked")
    before = loaded()
    for calibrate in (False, True):
        name = f"/models/r{calibrate}"
        assert service.http.put(name, json={"update": "sls", "calibrate": calibrate}).is_success
        for n in range(9):
            post(f"{name}/learn", {"text": f"a b{n}", "vector": [1, n], "labels": ["x", f"y{n}"]})
            post(f"{name}/learn", {"text": f"a b{n}", "labels": ["x", f"y{n}"]})
        post(f"{name}/classify", {"text": "a", "vector": [1, 2], "explain": True, "exclude": ["y1"]})
        post(f"{name}/classify", {"vector": [1, 2], "min_probability": 0.1})
        assert service.http.get(name).json()["digest"]
    print(sorted(loaded() - before))

    warmup("decided")
    before = loaded()
    for update in ("fsu", "sls"):
        name = f"/models/d{update}"
        assert service.http.put(name, json={"update": update, "decide": {}}).is_success
        for n in range(9):
            post(f"{name}/learn", {"text": f"a b{n}", "labels": ["x", f"y{n}"]})
            post(f"{name}/learn", {"text": f"a b{n}", "none": True})
        post(f"{name}/classify", {"text": "a", "exclude": ["y1"]})
        assert service.http.get(f"{name}/stats").json()["decisions"]["all"]["n"] == 18
    post("/models/dsls/learn", {"text": "a", "vector": [1, 2], "labels": ["x"]})
    post("/models/dsls/classify", {"vector": [1, 2]})
    print(sorted(loaded() - before))
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
