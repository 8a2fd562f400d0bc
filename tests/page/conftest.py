"""Chromium, driven by playwright, and a service of two processes with data learned."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from playwright import sync_api as playwright

from benchmarks.serving import Serving
from tests.page.newsroom import news
from tests.support.job_worker import office, until, until_worker
from tests.support.served import Served, bearer, make_key

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
N_NEWS = 4000
NDJSON = {"content-type": "application/x-ndjson"}

Open = Callable[..., Any]
Create = Callable[..., str]

VIEWS = {
    "overview": "Overview",
    "try": "Try it",
    "ask": "To review",
    "events": "Events",
    "files": "Files",
    "labels": "Labels",
    "versions": "Versions and jobs",
    "datasets": "Data sets",
    "models": "Models",
    "keys": "Keys and audit",
}

WIDE = {"color_scheme": "light", "viewport": {"width": 1280, "height": 844}}
NARROW = {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}

PATIENCE_MS = 60_000  # the machine may be busy, and requests wait for kernels
playwright.expect.set_options(timeout=PATIENCE_MS)

http = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""Each request has a connection of its own, so either replica answers it."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """For the tests of this folder only: as long as it is driven, this thread has a running event loop."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, timeout=2 * PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def serving(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two replicas and a worker, which have learned the news."""
    work = tmp_path_factory.mktemp("page")
    environment = os.environ | {"ABOUND_ARTIFACTS_URL": str(work / "artifacts")}
    with Serving(work / "data", "--processes", "2", output=work / "output", environment=environment) as service:
        service.until_ready()
        teach(service.url, news(N_NEWS))
        until_worker(service.url)
        until_applied(f"{service.url}/models/default")
        yield service
        assert service.stop() == 0


def teach(url: str, instances: Iterator[dict[str, Any]], headers: dict[str, str] | None = None) -> None:
    body = b"".join(json.dumps(one).encode() + b"\n" for one in instances)
    answer = http.post(f"{url}/learn", content=body, headers=NDJSON | (headers or {}))
    assert answer.status_code == 200, answer.text[:500]


def until_applied(address: str) -> None:
    """Wait until both replicas have applied the log of a model; ``/classify`` answers with what a replica has."""

    def are_level() -> bool:
        said = http.get(f"{address}/stats").raise_for_status().json()
        return [one["offset"] for one in said["replicas"] if one["ready"]] == [said["offset"]] * 2

    until(are_level, 120)


def learn(address: str, instances: list[dict[str, Any]]) -> None:
    """Let a model learn, and wait until both replicas answer with it."""
    http.post(f"{address}/learn", json={"instances": instances}).raise_for_status()
    until_applied(address)


def stats(serving: Serving) -> dict[str, Any]:
    return http.get(f"{serving.url}/models/default/stats").json()


def as_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def painted(page: Any, heading: str) -> Any:
    """The chart under a heading, once a line or a point is drawn in it."""
    plot = page.get_by_role("region", name=heading).locator(".plot svg").first
    playwright.expect(plot.locator(":is(.line path[d*=L], .line circle)").first).to_be_visible()
    return plot


@pytest.fixture
def create_model(serving: Serving) -> Iterator[Create]:
    """Create a model and return its address. It is deleted when the pages of the test are closed."""
    addresses = []

    def create(name: str, **config: Any) -> str:
        addresses.append(f"{serving.url}/models/{name}")
        assert http.put(addresses[-1], json=config).status_code == 201
        return addresses[-1]

    yield create
    for address in addresses:
        answer = http.delete(address)
        assert answer.is_success or answer.status_code == 404  # deleted by the test


@pytest.fixture
def open_page(browser: Any, serving: Serving, create_model: Create) -> Iterator[Open]:
    """Open a view of a model in a window of its own; at the end nothing may stand in its console."""
    contexts, wrong = [], []

    def open_page(view="overview", model="default", url=None, expected=(), **options) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce"} | options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " (event) => console.error('policy', event.violatedDirective, event.blockedURI))"
        )

        def note(message: Any) -> None:
            if message.type in ("error", "warning") and not any(one in message.text for one in expected):
                wrong.append(f"{message.type}: {message.text} {message.location}")

        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(f"thrown: {error}"))
        page.goto(f"{url or serving.url}/#{view}/{model}")
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            page.unroute_all(behavior="ignoreErrors")  # a handler may still wait for an answer
        context.close()
    assert wrong == []


@pytest.fixture
def fresh(create_model: Create) -> str:
    """The address of a model that has learned nothing."""
    return create_model("fresh")


SERVED, CHALLENGER = "a" * 32, "b" * 32


def serve_version(page: Any) -> None:
    """Let the page see a model whose version SERVED is active, and which has CHALLENGER, each with its events."""
    cards = [
        {"id": one, "method": method, "created": 1.7e9, "bytes": 2**20, "needed": one == SERVED or None}
        | {"metrics": {"R@1": 0.5, "R@5": 0.9, "live R@1": 0.4, "live R@5": 0.8}}
        | {"sizes": {"instances": 4000, "classes": 20}}
        for one, method in ((SERVED, "swnn"), (CHALLENGER, "ind"))
    ]
    difference = {"n": 5000, "mean": 0.01, "low": -0.1, "high": 0.1, "evidence": 2.0}
    versions = [
        {"version": one, "n": 5000, "window": {"n": 5000, "R@1": 0.5, "R@5": 0.8, "MRR": 0.6}}
        | {"difference": None if one == SERVED else difference, "decision": "served" if one == SERVED else "undecided"}
        for one in ("live", SERVED, CHALLENGER)
    ]
    contest = {"versions": versions, "gate": {"alpha": 0.05, "min_events": 500, "needed": 20.0}}
    contest |= {"decisions": [], "trouble": {}}

    def active(route: Any) -> None:
        answer = route.fetch()
        serving = {"version": SERVED, "former": "live", "weights": [0.5, 0.5]}
        route.fulfill(response=answer, json=answer.json() | {"version": SERVED, "serving": serving})

    def scored(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"challengers": contest})

    def ranked(route: Any) -> None:
        answer = route.fetch()
        labels = [{"label": one["label"], "score": one["score"]} for one in answer.json()["labels"]]
        route.fulfill(response=answer, json=answer.json() | {"version": SERVED, "labels": labels})

    challengers = {"challengers": [{"version": CHALLENGER}], "contest": contest}
    page.route("**/models/default", active)
    page.route("**/models/default/stats", scored)
    page.route("**/models/default/classify", ranked)
    page.route("**/models/default/versions", lambda route: route.fulfill(json={"versions": cards}))
    page.route("**/models/default/challengers", lambda route: route.fulfill(json=challengers))


@pytest.fixture(scope="package")
def locked(browser: Any) -> Iterator[tuple[Served, dict[str, str]]]:
    """A service with data, and secrets by what they are for."""
    with office() as place:
        place.worker.start()
        service = place.service
        teach(service.url, news(300))
        with ThreadPoolExecutor(1) as own:  # this thread has a running event loop: playwright's
            keys = {scope: own.submit(make_key, service, scope).result() for scope in ("admin", "classify", "learn")}
            keys["labeller"] = own.submit(make_key, service, "classify", "learn").result()
            keys["limited"] = own.submit(make_key, service, "admin", models=["default"]).result()
        service.http.headers.update(bearer(keys["admin"]))
        yield service, {scope: key.secret for scope, key in keys.items()}


def click_twice(button: Any) -> None:
    """Double-click. The two clicks of ``dblclick`` may be further apart while the machine is busy."""
    playwright.expect(button).to_be_enabled()
    button.evaluate("(one) => { one.click(); one.click(); }")


def until_drawn_again(page: Any, path: str) -> None:
    """Wait until a view has shown one more answer of a path that it asks for periodically."""
    for _ in range(2):  # the second one is asked for when the first one is shown
        page.wait_for_event("response", lambda answer: answer.url.endswith(path))


def give(page: Any, secret: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key").fill(secret)
    page.keyboard.press("Enter")
