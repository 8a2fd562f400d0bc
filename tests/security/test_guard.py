"""What each path asks of a key."""

from __future__ import annotations

import pytest

from abound.service.security.guard import Need, need_of

ALL = Need("admin", None)

PATHS = {
    ("GET", "/livez"): None,
    ("HEAD", "/readyz"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/docs"): None,
    ("GET", "/docs/swagger-ui.css"): None,
    ("GET", "/"): None,
    ("GET", "/web/0123/app.js"): None,
    ("POST", "/"): ALL,
    ("GET", "/web"): ALL,
    ("POST", "/livez"): ALL,
    ("POST", "/classify"): Need("classify", "default"),
    ("POST", "/learn"): Need("learn", "default"),
    ("GET", "/classify"): ALL,
    ("POST", "/models/m/classify"): Need("classify", "m"),
    ("POST", "/models/m/learn"): Need("learn", "m"),
    ("POST", "/models/m/learn/"): Need("admin", "m"),
    ("POST", "/models//learn"): ALL,
    ("POST", "//learn"): ALL,
    ("GET", "/models"): Need(None, None, True),
    ("GET", "/methods"): Need(None, None, True),
    ("GET", "/models/m"): Need(None, "m"),
    ("HEAD", "/models/m/stats"): Need(None, "m"),
    ("GET", "/models/m/labels"): Need(None, "m"),
    ("GET", "/models/m/labels/a/b"): Need(None, "m"),
    ("GET", "/models/m/label"): Need(None, "m"),
    ("GET", "/models/m/label/a"): Need("admin", "m"),
    ("DELETE", "/models/m/labels/a"): Need("admin", "m"),
    ("GET", "/models/m/snapshots"): Need(None, "m"),
    ("GET", "/models/m/versions"): Need(None, "m"),
    ("GET", "/models/m/contenders"): Need(None, "m"),
    ("GET", "/models/m/export"): Need("admin", "m"),
    ("GET", "/models/m/stats/x"): Need("admin", "m"),
    ("PUT", "/models/m"): Need("admin", "m"),
    ("DELETE", "/models/m"): Need("admin", "m"),
    ("PUT", "/models/m/import"): Need("admin", "m"),
    ("POST", "/models/m/snapshots"): Need("admin", "m"),
    ("POST", "/models/m/activate"): Need("admin", "m"),
    ("POST", "/models/m/contenders"): Need("admin", "m"),
    ("DELETE", "/models/m/contenders/v"): Need("admin", "m"),
    ("POST", "/models"): ALL,
    ("GET", "/metrics"): Need(None, None),
    ("GET", "/keys"): ALL,
    ("POST", "/keys"): ALL,
    ("GET", "/audit"): ALL,
    ("POST", "/jobs"): ALL,
    ("GET", "/jobs/1"): ALL,
    ("PUT", "/datasets/d"): ALL,
    ("GET", "/nothing"): ALL,
    ("OPTIONS", "/keys"): Need(None, None, True),
    ("TRACE", "/models/m"): Need("admin", "m"),
}


@pytest.mark.parametrize(("asked", "need"), PATHS.items(), ids=lambda value: str(value))
def test_what_a_path_asks_for(asked: tuple[str, str], need: Need | None) -> None:
    assert need_of(*asked) == need
