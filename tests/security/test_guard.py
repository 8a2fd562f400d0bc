"""What each path asks of a key."""

import pytest

from abound.security.guard import KeyRequirement, requirement_of

PATHS: dict[KeyRequirement | None, str] = {
    None: """GET /livez, HEAD /readyz, GET /openapi.json, GET /docs, GET /docs/swagger-ui.css, GET /,
        GET /web/0123/app.js""",
    KeyRequirement((), None): "GET /metrics",
    KeyRequirement((), None, True): "GET /models, GET /methods, OPTIONS /keys",
    KeyRequirement((), "m"): """GET /models/m, HEAD /models/m/stats, GET /models/m/labels, GET /models/m/labels/a/b,
        GET /models/m/label, GET /models/m/snapshots, GET /models/m/versions, GET /models/m/challengers""",
    KeyRequirement(("classify",), "default"): "POST /classify",
    KeyRequirement(("classify",), "m"): "POST /models/m/classify",
    KeyRequirement(("learn",), "default"): "POST /learn",
    KeyRequirement(("learn",), "m"): """POST /models/m/learn, PUT /models/m/labels, GET /models/m/events,
        DELETE /models/m/events/1-0.0, GET /models/m/suspicious, DELETE /models/m/suspicious/1-0.0""",
    KeyRequirement(("classify", "learn"), "m"): "GET /models/m/uncertain",
    KeyRequirement(("admin",), "m"): """POST /models/m/learn/, GET /models/m/label/a, PUT /models/m/labels/a,
        DELETE /models/m/labels/a, DELETE /models/m/events, POST /models/m/uncertain, GET /models/m/export,
        GET /models/m/stats/x, PUT /models/m, DELETE /models/m, PUT /models/m/import, POST /models/m/snapshots,
        POST /models/m/activate, POST /models/m/challengers, DELETE /models/m/challengers/v, TRACE /models/m""",
    KeyRequirement(("admin",), None): """POST /, GET /web, POST /livez, GET /classify, POST /models//learn,
        POST //learn, POST /models, GET /keys, POST /keys, GET /audit, POST /jobs, GET /jobs/1, PUT /datasets/d,
        GET /nothing""",
}
NEEDED = {one.strip(): need for need, some in PATHS.items() for one in some.split(",")}


@pytest.mark.parametrize("asked", NEEDED)
def test_what_a_path_asks_for(asked: str) -> None:
    assert requirement_of(*asked.split()) == NEEDED[asked]
