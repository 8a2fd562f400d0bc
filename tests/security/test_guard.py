"""What each path asks of a key."""

import pytest

from abound.security.guard import KeyRequirement, requirement_of

ALL = KeyRequirement(("admin",), None)

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
    ("POST", "/classify"): KeyRequirement(("classify",), "default"),
    ("POST", "/learn"): KeyRequirement(("learn",), "default"),
    ("GET", "/classify"): ALL,
    ("POST", "/models/m/classify"): KeyRequirement(("classify",), "m"),
    ("POST", "/models/m/learn"): KeyRequirement(("learn",), "m"),
    ("POST", "/models/m/learn/"): KeyRequirement(("admin",), "m"),
    ("POST", "/models//learn"): ALL,
    ("POST", "//learn"): ALL,
    ("GET", "/models"): KeyRequirement((), None, True),
    ("GET", "/methods"): KeyRequirement((), None, True),
    ("GET", "/models/m"): KeyRequirement((), "m"),
    ("HEAD", "/models/m/stats"): KeyRequirement((), "m"),
    ("GET", "/models/m/labels"): KeyRequirement((), "m"),
    ("GET", "/models/m/labels/a/b"): KeyRequirement((), "m"),
    ("GET", "/models/m/label"): KeyRequirement((), "m"),
    ("GET", "/models/m/label/a"): KeyRequirement(("admin",), "m"),
    ("PUT", "/models/m/labels"): KeyRequirement(("learn",), "m"),
    ("PUT", "/models/m/labels/a"): KeyRequirement(("admin",), "m"),
    ("DELETE", "/models/m/labels/a"): KeyRequirement(("admin",), "m"),
    ("GET", "/models/m/snapshots"): KeyRequirement((), "m"),
    ("GET", "/models/m/versions"): KeyRequirement((), "m"),
    ("GET", "/models/m/challengers"): KeyRequirement((), "m"),
    ("GET", "/models/m/events"): KeyRequirement(("learn",), "m"),
    ("DELETE", "/models/m/events/1-0.0"): KeyRequirement(("learn",), "m"),
    ("DELETE", "/models/m/events"): KeyRequirement(("admin",), "m"),
    ("GET", "/models/m/suspicious"): KeyRequirement(("learn",), "m"),
    ("DELETE", "/models/m/suspicious/1-0.0"): KeyRequirement(("learn",), "m"),
    ("GET", "/models/m/uncertain"): KeyRequirement(("classify", "learn"), "m"),
    ("POST", "/models/m/uncertain"): KeyRequirement(("admin",), "m"),
    ("GET", "/models/m/export"): KeyRequirement(("admin",), "m"),
    ("GET", "/models/m/stats/x"): KeyRequirement(("admin",), "m"),
    ("PUT", "/models/m"): KeyRequirement(("admin",), "m"),
    ("DELETE", "/models/m"): KeyRequirement(("admin",), "m"),
    ("PUT", "/models/m/import"): KeyRequirement(("admin",), "m"),
    ("POST", "/models/m/snapshots"): KeyRequirement(("admin",), "m"),
    ("POST", "/models/m/activate"): KeyRequirement(("admin",), "m"),
    ("POST", "/models/m/challengers"): KeyRequirement(("admin",), "m"),
    ("DELETE", "/models/m/challengers/v"): KeyRequirement(("admin",), "m"),
    ("POST", "/models"): ALL,
    ("GET", "/metrics"): KeyRequirement((), None),
    ("GET", "/keys"): ALL,
    ("POST", "/keys"): ALL,
    ("GET", "/audit"): ALL,
    ("POST", "/jobs"): ALL,
    ("GET", "/jobs/1"): ALL,
    ("PUT", "/datasets/d"): ALL,
    ("GET", "/nothing"): ALL,
    ("OPTIONS", "/keys"): KeyRequirement((), None, True),
    ("TRACE", "/models/m"): KeyRequirement(("admin",), "m"),
}


@pytest.mark.parametrize(("asked", "need"), PATHS.items(), ids=lambda value: str(value))
def test_what_a_path_asks_for(asked: tuple[str, str], need: KeyRequirement | None) -> None:
    assert requirement_of(*asked) == need
