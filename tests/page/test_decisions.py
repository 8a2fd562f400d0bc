"""Probabilities and decisions on the page: beside scores, how far they were right, what another target costs."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Open, as_percent, http, learn, painted, until_drawn_again
from tests.page.newsroom import news
from tests.page.test_accessible import barriers, fits

HEADING = "Answers without a person"


@pytest.fixture(scope="module")
def decider(serving: Serving) -> Iterator[str]:
    """The address of a model that decides, and has learned news of which one in eight has another subject."""
    address = f"{serving.url}/models/decider"
    decide = {"agreement": 0.84, "audit": 1, "none": 0.02}
    assert http.put(address, json={"update": "sls", "decide": decide}).status_code == 201
    rng = random.Random(5)
    items = [one | {"labels": ["trade"]} if rng.random() < 0.125 else one for one in news(1000, change=1)]
    learn(address, items)
    yield address
    http.delete(address).raise_for_status()


def decisions(address: str) -> dict[str, Any]:
    return http.get(f"{address}/stats").json()["decisions"]


def test_what_another_target_costs_is_read_from_the_curve_and_set(open_page: Open, decider: str) -> None:
    said = decisions(decider)
    page = open_page("overview", "decider", **NARROW)
    chart = painted(page, HEADING)
    now = next(one for one in said["curve"] if one["threshold"] == said["threshold"])
    assert chart.get_attribute("aria-label").startswith(f"This model answers {as_percent(now['share'])}")
    part = page.get_by_role("region", name=HEADING)
    row = part.locator("tbody tr", has_text="deferred").locator("td")
    expect(row).to_have_text(["deferred", *(as_percent(said[name]["shares"]["defer"]) for name in ("all", "newest"))])
    slider = part.get_by_label("What would another target cost?")
    other = next(one for one in said["curve"] if one["low"] >= 0.86)
    slider.fill("86")
    expect(part).to_contain_text(f"A target of 86.0 % would answer {as_percent(other['share'])}")
    barriers(page)
    fits(page, 390)
    slider.fill("99.9")
    expect(part).to_contain_text("is not reached by any threshold yet: everything would be deferred")
    slider.fill("86")
    part.get_by_role("button", name="Set the target to 86.0 %").click()
    expect(part).to_contain_text("A target of 86.0 %, the present one")
    changed = http.get(decider).json()["config"]["decide"]
    assert (changed["agreement"], changed["audit"]) == (0.86, 1)


def test_a_decision_is_said_and_none_is_taught(open_page: Open, decider: str) -> None:
    page = open_page("try", "decider")
    sent = []
    page.on("request", lambda request: request.url.endswith("/learn") and sent.append(request.post_data_json))
    text = page.get_by_role("textbox", name="Text")
    chips = page.get_by_role("list", name="Chosen").get_by_role("listitem")
    text.fill("wheat maize bushels tonnes kansas")
    expect(page.locator(".decision")).to_contain_text("Answer: “grain” may be applied without a person.")
    expect(chips).to_have_text(["grain ×"])
    expect(page.locator(".rank")).to_have_count(10)
    text.fill("wheat barrel bank")
    expect(page.locator(".decision")).to_contain_text("Ask a person: if a label fits, it is probably one of")
    expect(chips).to_have_count(0)
    text.fill("zeppelin")
    expect(page.locator(".decision")).to_contain_text("None of the labels: no label fits")
    page.get_by_label("None of the labels fits").check()
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned that no label fits.")).to_be_visible()
    assert sent == [{"text": "zeppelin", "labels": [], "source": "page", "none": True}]
    expect(page.get_by_label("None of the labels fits")).not_to_be_checked()


TEXT = "wheat harvest in kansas"
RELIABILITY = "Are the probabilities right?"


@pytest.fixture(scope="module")
def sure(serving: Serving) -> Iterator[str]:
    """The address of a model that has learned the news."""
    address = f"{serving.url}/models/sure"
    assert http.put(address, json={}).status_code == 201
    learn(address, list(news(1000)))
    yield address
    http.delete(address).raise_for_status()


def ranked(address: str, **asked: Any) -> list[dict[str, Any]]:
    return http.post(f"{address}/classify", json={"text": TEXT, **asked}).json()["labels"]


def chance(p: float) -> str:
    """Nothing that was estimated is certain."""
    return "<0.1 %" if p < 0.001 else ">99.9 %" if p > 0.999 else as_percent(p)


@pytest.mark.long
def test_a_probability_stands_beside_each_score_and_the_least_may_be_chosen(open_page: Open, sure: str) -> None:
    page = open_page("try", "sure")
    page.get_by_role("textbox", name="Text").fill(TEXT)
    said = ranked(sure)
    figures = page.locator(".rank .probability")
    expect(figures).to_have_text([chance(one["probability"]) for one in said])
    expect(page.locator(".rank").first).to_have_accessible_name(
        f"1. {said[0]['label']} probability {chance(said[0]['probability'])} , score {said[0]['score']:.3f}"
    )
    barriers(page)
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Least probability").select_option("50 %")
    likely = ranked(sure, min_probability=0.5)
    assert 0 < len(likely) < len(said)
    expect(page.locator(".rank .name")).to_have_text([one["label"] for one in likely])
    page.get_by_role("textbox", name="Text").fill("zeppelin")
    expect(page.locator(".empty")).to_contain_text("No label is as probable as that.")
    page.get_by_label("Least probability").select_option("any")
    expect(page.locator(".empty")).to_contain_text("No label has any of these features.")


@pytest.mark.long
def test_how_far_probabilities_were_right_is_drawn_and_told(open_page: Open, sure: str) -> None:
    page = open_page("overview", "sure", **NARROW)
    chart = painted(page, RELIABILITY)
    said = http.get(f"{sure}/stats").json()["calibration"]
    part = page.get_by_role("region", name=RELIABILITY)
    expect(part.locator("dd").first).to_have_text(
        f"{said['newest']['error']:.3f} over the newest {said['newest']['n']:,} labels, "
        f"{said['all']['error']:.3f} over all time"
    )
    assert f"Probabilities of the newest {said['newest']['n']:,} labels" in chart.get_attribute("aria-label")
    part.get_by_text("As a table").click()
    rows = part.locator("tbody tr")
    expect(rows).to_have_count(10)
    best = said["newest"]["bins"][9]
    expect(rows.nth(9).locator("td").nth(1)).to_have_text(f"{best['n']:,}")
    expect(rows.nth(9).locator("td").nth(3)).to_have_text(as_percent(best["true"]))
    until_drawn_again(page, "/stats")  # the table stays open where it is
    expect(part.locator("details")).to_have_attribute("open", "")
    fits(page, 390)
