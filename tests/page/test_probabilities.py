"""The page of a model that calibrates: probabilities beside scores, how far they were right; else nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NDJSON, Create, Open, http, learn, painted, until_applied, until_drawn_again
from tests.page.newsroom import news
from tests.page.test_accessible import barriers

pytestmark = pytest.mark.long

TEXT = "wheat harvest in kansas"
HEADING = "How far probabilities were right"
WORDY = {
    "the price of wheat": "agriculture and fishing",
    "the price of oil": "energy and natural resources",
    "the price index": "macroeconomics and inflation",
}

CUT = """[...document.querySelectorAll(".rank .name, .rank .moved")].filter((one) => {
    if (one.scrollHeight > one.clientHeight + 1 && one.clientHeight > 0) return true;
    const box = one.getBoundingClientRect();
    for (let around = one.parentElement; !around.matches("li"); around = around.parentElement) {
        const [bounds, { overflow }] = [around.getBoundingClientRect(), getComputedStyle(around)];
        if (overflow !== "visible" && (box.bottom > bounds.bottom + 1 || box.right > bounds.right + 1)) return true;
    }
    return false;
}).map((one) => one.textContent)"""


@pytest.fixture(scope="module")
def sure(serving: Serving) -> Iterator[str]:
    """The address of a model that calibrates, and has learned the news."""
    address = f"{serving.url}/models/sure"
    assert http.put(address, json={"calibrate": True}).status_code == 201
    learn(address, list(news(1000)))
    yield address
    http.delete(address).raise_for_status()


@pytest.fixture
def wordy(create_model: Create) -> str:
    """The address of a model whose labels are several words long; it does not calibrate yet."""
    address = create_model("wordy", update="sls")
    instances = [{"text": text, "labels": [label]} for text, label in WORDY.items()]
    learn(address, instances * 20)
    return address


def calibrate(address: str, on: bool) -> None:
    """Let a model calibrate or not, in both replicas."""
    http.put(address, json={"calibrate": on}).raise_for_status()
    until_applied(address)


def ranked(address: str, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.post(f"{address}/classify", json={"text": TEXT, **asked}).json()["labels"]
    return found


def as_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def chance(p: float) -> str:
    """Nothing that was estimated is certain."""
    return "<0.1 %" if p < 0.001 else ">99.9 %" if p > 0.999 else as_percent(p)


def test_a_probability_stands_beside_each_score_and_the_least_may_be_chosen(
    open_page: Open, sure: str, tmp_path: Path
) -> None:
    page = open_page("try", "sure")
    page.get_by_role("textbox", name="Text").fill(TEXT)
    said = ranked(sure)
    assert len(said) > 2
    figures = page.locator(".rank .probability")
    expect(figures).to_have_text([chance(one["probability"]) for one in said])
    expect(page.locator(".rank").first).to_have_accessible_name(
        f"1. {said[0]['label']} probability {chance(said[0]['probability'])} , score {said[0]['score']:.3f}"
    )
    barriers(page)
    page.screenshot(full_page=True, path=tmp_path / "try.png")
    page.get_by_label("Least probability").select_option("50 %")
    likely = ranked(sure, min_probability=0.5)
    assert 0 < len(likely) < len(said)
    expect(page.locator(".rank .name")).to_have_text([one["label"] for one in likely])
    page.get_by_role("textbox", name="Text").fill("zeppelin")
    expect(page.locator(".empty")).to_contain_text("No label is as probable as that.")
    page.get_by_label("Least probability").select_option("any")
    expect(page.locator(".empty")).to_contain_text("No label has any of these features.")


def test_what_is_asked_of_something_else_than_the_index_asks_for_no_probability(open_page: Open, sure: str) -> None:
    page = open_page("try", "sure", expected=("ERR_FAILED",))

    def with_another_one(route: Any) -> None:
        """As if there were a version, and it ranked."""
        if route.request.method == "GET":
            route.fulfill(json={"versions": [{"id": "0123456789abcdef", "method": "swnn"}]})

    page.route("**/models/sure/versions", with_another_one)
    page.reload()
    least = page.get_by_label("Least probability")
    least.select_option("25 %")
    page.route("**/models/sure/classify", lambda route: route.abort())
    with page.expect_request("**/classify") as asked:
        page.get_by_role("textbox", name="Text").fill(TEXT)
    assert asked.value.post_data_json["min_probability"] == 0.25
    with page.expect_request("**/classify") as asked:
        page.get_by_label("Ranked by").select_option("swnn 01234567")
    assert "min_probability" not in asked.value.post_data_json
    expect(least).to_be_disabled()
    with page.expect_request("**/classify") as asked:
        page.get_by_label("Ranked by").select_option("live")
    assert asked.value.post_data_json["min_probability"] == 0.25


def test_what_was_turned_off_elsewhere_is_asked_for_no_more(open_page: Open, wordy: str) -> None:
    calibrate(wordy, True)
    page = open_page("try", "wordy", expected=("422",))
    least = page.get_by_label("Least probability")
    least.select_option("10 %")
    page.get_by_role("textbox", name="Text").fill("the price of")
    expect(page.locator(".rank .probability").first).to_be_visible()
    calibrate(wordy, False)
    with page.expect_response("**/classify") as refused:
        page.get_by_role("textbox", name="Text").fill("the price of wheat")
    assert refused.value.status == 422
    expect(page.locator(".rank .name")).to_have_count(len(WORDY))
    expect(page.locator(".rank .probability")).to_have_count(0)
    expect(page.locator(".problem")).to_have_count(0)
    expect(least).to_be_hidden()


def test_what_was_turned_on_elsewhere_is_offered(open_page: Open, wordy: str) -> None:
    page = open_page("try", "wordy")
    least = page.get_by_label("Least probability")
    page.get_by_role("textbox", name="Text").fill("the price of")
    expect(page.locator(".rank .name").first).to_be_visible()
    expect(least).to_be_hidden()
    for on in (True, False):
        calibrate(wordy, on)
        page.get_by_role("textbox", name="Text").fill(f"the price of wheat, {on}")
        expect(least).to_be_visible(visible=on)
        expect(page.locator(".rank .probability")).to_have_count(len(WORDY) if on else 0)


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 412), ("light", 940)])
def test_names_and_what_moved_are_whole_where_there_is_little_room(
    open_page: Open, wordy: str, tmp_path: Path, scheme: str, width: int
) -> None:
    """On a phone, and in half a window."""

    def opened() -> Any:
        page = open_page("try", "wordy", color_scheme=scheme, viewport={"width": width, "height": 800})
        page.get_by_role("textbox", name="Text").fill("the price of")
        expect(page.locator(".rank .name")).to_have_count(len(WORDY))
        return page

    names = "[...document.querySelectorAll('.rank .name')]"
    narrowest = f"Math.min(...{names}.map((one) => one.closest('.rank > *').getBoundingClientRect().width))"
    without = opened().evaluate(narrowest)
    calibrate(wordy, True)
    page = opened()
    expect(page.locator(".rank .probability")).to_have_count(len(WORDY))
    assert page.evaluate(narrowest) >= without
    page.get_by_label("Right labels").fill("something altogether new and different")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator(".rank .moved.better").first).to_have_text("new")
    assert page.locator(".rank .moved").count() > 1
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    barriers(page)
    page.screenshot(full_page=True, path=tmp_path / f"try-{scheme}-{width}.png")


def test_a_model_that_does_not_calibrate_is_asked_nothing_of_it(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    page.get_by_role("textbox", name="Text").fill(TEXT)
    expect(page.locator(".rank .name").first).to_have_text("grain")
    expect(page.get_by_label("Least probability")).to_be_hidden()
    expect(page.locator(".rank .probability")).to_have_count(0)
    page.goto(f"{serving.url}/#overview/default")
    painted(page, "How well it ranks, over time")
    expect(page.get_by_role("heading", name=HEADING)).to_be_hidden()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_how_far_probabilities_were_right_is_drawn_and_told(
    open_page: Open, sure: str, tmp_path: Path, scheme: str, width: int
) -> None:
    page = open_page("overview", "sure", color_scheme=scheme, viewport={"width": width, "height": 800})
    canvas = painted(page, HEADING)
    said = http.get(f"{sure}/stats").json()["calibration"]
    part = page.get_by_role("region", name=HEADING)
    expect(part.locator("dd").first).to_have_text(
        f"{said['newest']['error']:.3f} lately, {said['all']['error']:.3f} over all time"
    )
    assert f"Probabilities of the newest {said['newest']['n']:,} labels" in canvas.get_attribute("aria-label")
    part.get_by_text("As a table").click()
    rows = part.locator("tbody tr")
    expect(rows).to_have_count(10)
    best = said["newest"]["bins"][9]
    expect(rows.nth(9).locator("td").nth(1)).to_have_text(f"{best['n']:,}")
    expect(rows.nth(9).locator("td").nth(3)).to_have_text(as_percent(best["true"]))
    until_drawn_again(page, "/stats")  # the table stays open where it is
    expect(part.locator("details")).to_have_attribute("open", "")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    barriers(page)
    page.screenshot(full_page=True, path=tmp_path / f"overview-{scheme}.png")


def test_a_model_that_has_learned_nothing_since_it_calibrates_says_so(open_page: Open, create_model: Create) -> None:
    address = create_model("unsure")
    learn(address, [{"text": "oil", "labels": ["crude"]}])
    calibrate(address, True)
    page = open_page("overview", "unsure")
    part = page.get_by_role("region", name=HEADING)
    expect(part).to_contain_text("No probabilities yet.")
    lines = '{"text": "wheat", "labels": ["grain"]}\n' * 3
    http.post(f"{address}/learn", content=lines, headers=NDJSON).raise_for_status()
    painted(page, HEADING)
