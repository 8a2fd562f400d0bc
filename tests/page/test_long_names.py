"""Every view with names as long as the service takes them, at both widths and in both themes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from abound import Client
from benchmarks.serving import Serving
from tests.page.conftest import VIEWS, Open
from tests.page.test_accessible import barriers, tables

pytestmark = pytest.mark.long

WORDS = "customer_returns-and/refunds_by_"
MODEL = f"{WORDS.replace('/', '.') * 3}"[:64]
DATASET = "tickets" + "x" * 57
LABELS = [(WORDS * 20)[:512], "L" * 512]
FEATURE = "f" * 500
SENTENCE = "because_of-that/" * 12

WIDER = """(width) => [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".scroll, .figures, .unseen, .skip, .views") && one.checkVisibility())
    .filter((one) => { const box = one.getBoundingClientRect(); return box.right > width + 0.5 || box.left < -0.5; })
    .map((one) => one.outerHTML.slice(0, 200))"""
"""Elements beside the window, apart from those in what scrolls by itself."""


@pytest.fixture(scope="module")
def named_at_length(serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A model, a data set, a version and jobs with long names."""
    file = tmp_path_factory.mktemp("named") / "x.jsonl"
    known = {"text": f"wheat {SENTENCE}", "features": {FEATURE: 1, "A" * 512: 1}, "labels": LABELS}
    instances = [known, {"text": "oil", "labels": ["crude"]}]
    file.write_text("".join(json.dumps(one) + "\n" for one in instances * 20))
    forget = {"source": "s" * 64, "reason": SENTENCE, "dry_run": True}
    with Client(serving.url) as client:
        client.configure(MODEL, {"calibrate": True})
        client.learn(MODEL, {"instances": instances * 100})
        client.classify(MODEL, {"instances": [{"text": "wheat oil", "features": {FEATURE: 1}}], "remember": True})
        client.snapshot(MODEL)
        client.put_dataset(file, DATASET)
        client.wait(client.submit({"model": MODEL, "method": "forget", "params": forget})["id"])
        version = client.wait(client.submit({"model": MODEL, "method": "ind", "data": DATASET})["id"])["version"]
        client.enter_challenger(MODEL, version)
        until = time.monotonic() + 120
        while client.challengers(MODEL)["contest"] is None:
            client.learn(MODEL, {"instances": instances})
            assert time.monotonic() < until
            time.sleep(0.5)
        yield
        client.delete(MODEL)
        client.delete_dataset(DATASET)


def show(page: Any, view: str) -> None:
    """Show as much of a view as there is."""
    expect(page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
    expect(page.locator(f"#view > .{view} .card:visible").first).to_be_visible()
    if view == "overview":
        expect(page.locator("canvas").first).to_be_visible()
        tables(page)
    elif view == "try":
        page.get_by_role("textbox", name="Text").fill("wheat")
        expect(page.locator(".rank")).to_have_count(2)
        page.get_by_role("button", name="is not right").nth(1).click()
        page.get_by_role("button", name="is right").nth(0).click()
        page.get_by_label("Right labels").fill(f'"{LABELS[0][:200]}, and more",')
        page.get_by_label("Right labels").press("Enter")
        page.locator(".rank .name").first.click()
        expect(page.locator("canvas").first).to_be_visible()
        tables(page)
    elif view == "ask":
        expect(page.locator(".rank").first).to_be_visible()
        page.locator(".rank").first.click()
    elif view == "labels":
        page.locator(".label").first.click()
        expect(page.locator("canvas")).to_be_visible()
        tables(page)
    elif view == "versions":
        expect(page.locator(".job")).to_have_count(2)
        expect(page.get_by_label("Learn from").locator("option")).to_have_count(2)
        page.get_by_label("Learn from").select_option(DATASET)
        expect(page.get_by_role("region", name="Challengers").locator("tbody tr").first).to_be_attached()
        page.get_by_text("Parameters", exact=True).click()
    elif view == "datasets":
        page.get_by_role("button", name=f"Show rows of {DATASET}").click()
        expect(page.get_by_role("region", name="Rows of").locator("tbody tr")).to_have_count(10)
    elif view == "models":
        expect(page.get_by_role("button", name=f"Delete {MODEL}")).to_be_visible()
        expect(page.get_by_role("button", name="Save")).to_be_visible()
        for more in page.get_by_text("More settings").all():
            more.click()
    else:
        expect(page.locator("tbody tr").first).to_be_visible()


def keys_at_length(page: Any) -> None:
    """Let the service say that it has a key with a long description; a real one would lock it."""
    key = {"id": "k" * 16, "description": "d" * 200, "scopes": ["classify", "learn", "admin"], "models": [MODEL] * 3}
    act = {"id": "1-0", "at": 1.7e9, "action": "dataset.put", "key": None, "address": "2001:db8::" + "1234:" * 5 + "1"}
    key |= {"state": "valid", "used": None, "expires": None, "created": 1.7e9}
    act |= {"outcome": "accepted", "details": {"model": MODEL, "reason": SENTENCE}}
    page.route("**/keys", lambda route: route.fulfill(json={"keys": [key]}))
    page.route("**/audit?*", lambda route: route.fulfill(json={"acts": [act]}))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_name_widens_a_view_and_no_barrier_is_found(
    named_at_length: None, open_page: Open, serving: Serving, scheme: str, width: int
) -> None:
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 844}, has_touch=width < 700)
    keys_at_length(page)
    for view in VIEWS:
        page.goto(f"{serving.url}/#{view}/{MODEL}")
        show(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") == width, view
        assert page.evaluate(WIDER, width) == [], view
        barriers(page)
        if view in ("try", "ask"):
            assert all(chip.bounding_box()["height"] < 90 for chip in page.locator(".chip").all()), view
