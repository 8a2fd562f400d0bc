"""The overview: what it draws and what it leaves out, and the words that it explains."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, REPLICA, Create, Open, http, learn, painted, serve_version, stats
from tests.page.newsroom import SUBJECTS, news
from tests.page.test_accessible import fits, tables

DRAWN = """(canvas) => Object.fromEntries(
    Chart.getChart(canvas).data.datasets.map(({ label, data }) => [label.replace(/:.*/, ""), data])
)"""

MEASURED = "^(?!0$)[0-9]"
"""The figure of a rate that is not 0."""

RECORD = """(name) => {
    window.seen = [];
    const note = () => {
        const tile = [...document.querySelectorAll(".tile")].find((one) => one.textContent.startsWith(name));
        window.seen.push(tile ? [".figure", ".beside"].map((one) => tile.querySelector(one).textContent) : null);
    };
    new MutationObserver(note).observe(document.getElementById("view"), { childList: true, subtree: true });
}"""


def record(page: Any, tile: str) -> None:
    """Record what a tile shows from now on: some figures are shown only until the next answer."""
    page.evaluate(RECORD, tile)


def until_shown(page: Any, beside: str, figure: str = "") -> None:
    """Wait until the recorded tile has shown this text beside a figure that matches ``figure``."""
    page.wait_for_function(
        "([beside, figure]) => seen.some((one) => one && one[1] === beside && new RegExp(figure).test(one[0]))",
        arg=[beside, figure],
    )


def test_what_has_fewer_than_thirty_events_is_not_drawn(open_page: Open, serving: Serving) -> None:
    bins = [{"n": 0, "estimate": None, "true": None} for _ in range(10)]
    bins[1] = {"n": 29, "estimate": 0.15, "true": 1.0}
    bins[4] = {"n": 30, "estimate": 0.45, "true": 0.5}
    part = {"n": 59, "error": 0.2, "brier": 0.2, "bins": bins}
    page = open_page("datasets")
    serve_version(page, n_served=29)

    def with_few(route: Any) -> None:
        answer = route.fetch()
        said = answer.json()
        said["window"]["groups"]["torso"] |= {"n": 30, "R@1": 0.4, "R@5": 0.5, "MRR": 0.45}
        said["window"]["groups"]["tail"] |= {"n": 29, "R@1": 1.0, "R@5": 1.0, "MRR": 1.0}
        route.fulfill(response=answer, json=said | {"calibration": {"newest": part, "all": part}})

    page.get_by_role("link", name="Overview").click()
    tile = page.locator(".tile").filter(has_text="of version aaaaaaaa")
    expect(tile.locator(".figure")).to_have_text("–")
    expect(tile.locator(".beside")).to_have_text("29 events so far")
    page.route("**/models/default/stats", with_few)
    drawn = painted(page, "How far probabilities were right").evaluate(DRAWN)
    assert drawn["lately"] == drawn["over all time"] == [{"x": 0.45, "y": 0.5}]
    groups = painted(page, "Frequent and rare labels").evaluate(DRAWN)
    assert (groups["torso"], groups["tail"]) == ([0.4, 0.5, 0.45], [None] * 3)


def test_overview(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    tile = page.locator(".tile")
    said = stats(serving)
    assert said["classes"] >= len(SUBJECTS)
    expect(tile.filter(has_text="Classes").locator(".figure")).to_have_text(str(said["classes"]))
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".figure")).to_have_text(
        f"{100 * said['window']['R@1']:.1f} %"
    )
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".beside")).to_have_text(
        f"{100 * said['recent']['R@1']:.1f} % of the newest 500, {100 * said['all']['R@1']:.1f} % over all time"
    )
    expect(tile.filter(has_text="Events a second").locator(".beside")).to_have_text(re.compile(r"^[\d,]+ in all$"))
    for heading in ("How well it ranks, over time", "Frequent and rare labels", "Events a second"):
        painted(page, heading)
    trace = page.get_by_role("region", name="How well it ranks, over time")
    trace.get_by_text("As a table").click()
    expect(trace.locator("tbody tr")).to_have_count(len(said["trace"]["learned"]))
    replicas = page.get_by_role("region", name="Replicas", exact=True)
    expect(replicas.locator("tbody tr")).to_have_count(2)
    expect(replicas.locator("tbody")).to_contain_text(said["offset"])
    expect(replicas.get_by_text("ready", exact=True)).to_have_count(2)
    page.wait_for_function(  # at rest both replicas show the same digest, each for the offset that it is at
        """() => {
            const shown = [...document.querySelectorAll("code.digest")].map((one) => one.textContent);
            const areNow = document.querySelector("code.digest + .hint") === null;
            return areNow && shown.length === 2 && shown[0] !== "–" && shown[0] === shown[1];
        }"""
    )
    budgets = page.get_by_role("region", name="Size against its bounds")
    expect(budgets.get_by_role("meter", name="Connections a feature, mean")).to_have_attribute("aria-valuemax", "25")
    expect(budgets).to_contain_text("max_features")
    expect(budgets).to_contain_text("no bound of its own: all models share the memory of a replica max_memory")


def test_a_line_over_a_long_life_weighs_its_points(open_page: Open) -> None:
    page = open_page("overview")
    blocks = page.evaluate(
        """import(document.querySelector("script[type=module]").src.replace("app.js", "overview.js"))
        .then(({ blocks }) => {
            const learned = Array.from({ length: 96 }, (_, at) => 30 * (at + 1));
            const values = learned.map((_, at) => (at < 2 ? at : at === 3 ? 0.5 : null));
            const weights = learned.map((_, at) => [10, 30, 0, 29][at] ?? 0);
            const young = blocks([10, 20, 30, 40], [0, 0, 1, 1], [10, 10, 10, 10]);
            return [blocks(learned, values, weights).slice(0, 3), young];
        })"""
    )
    assert blocks == [[[60, 0.75], [120, None], [180, None]], [[30, pytest.approx(1 / 3)], [40, None]]]


def test_requests_begin_again_when_a_replica_comes(open_page: Open) -> None:
    """The requests that it has answered before are no requests of now."""
    page = open_page("datasets")
    counts, replicas = [0, 100, 0], ["one"]

    def counted(route: Any) -> None:
        counts[1] += 4
        classify = {"bounds": [0.001, 0.01], "counts": counts}
        answer = route.fetch()
        shown = [REPLICA | {"replica": one} for one in replicas]
        route.fulfill(response=answer, json=answer.json() | {"classify": classify, "replicas": shown})

    page.route("**/models/default/stats", counted)
    page.get_by_role("link", name="Overview").click()
    tile = page.locator(".tile").filter(has_text="Requests to /classify a second, all models")
    few = re.compile(r"^[012]\.?\d?$")
    expect(tile.locator(".figure")).to_have_text(few)
    expect(tile.locator(".beside")).to_have_text("half within 10 ms, 99 % within 10 ms")
    record(page, "Requests to /classify")
    replicas.append("two")
    counts[0] += 100_000
    page.wait_for_function("() => seen.includes(null)")
    expect(tile.locator(".figure")).to_have_text(few)


def test_words_of_the_field_are_explained_where_they_stand(open_page: Open) -> None:
    page = open_page("overview")
    painted(page, "How well it ranks, over time")
    painted(page, "Frequent and rare labels")
    tables(page)
    words = [(".tile", "R@1", "ranked first"), (".tile", "R@5", "among the first five")]
    words += [(".card", "MRR", "1 / rank"), (".card", "torso", "10 to 99 times")]
    for place, word, said in words:
        button = page.locator(place).get_by_role("button", name=word, exact=True).first
        expect(button).to_have_accessible_description(re.compile(said))
        button.focus()
        tip = page.get_by_role("tooltip").filter(has_text=said)
        expect(tip).to_be_visible()
        page.keyboard.press("Escape")
        expect(tip).to_have_count(0)


def test_events_a_second_are_counted_and_begin_again_with_another_state(open_page: Open, create_model: Create) -> None:
    address = create_model("reset")

    def learn(n: int) -> None:
        http.post(f"{address}/learn", json={"instances": list(news(n, seed=6))}).raise_for_status()

    def restored(route: Any) -> None:
        """As if the model had been replaced by one that has learned 150 less."""
        answer = route.fetch()
        said = answer.json()
        milliseconds, rest = said["offset"].split("-")
        said |= {"learned": said["learned"] - 150, "offset": f"{int(milliseconds) + 1}-{rest}"}
        route.fulfill(response=answer, json=said)

    learn(200)
    page = open_page("overview", "reset")
    expect(page.locator(".tile").filter(has_text="Events a second").locator(".beside")).to_have_text("200 in all")
    record(page, "Events a second")
    learn(100)
    until_shown(page, "300 in all", MEASURED)
    page.route(f"{address}/stats", restored)
    until_shown(page, "measuring…")
    until_shown(page, "150 in all")
    learn(40)
    until_shown(page, "190 in all", MEASURED)
    page.unroute(f"{address}/stats")


def test_re_ranking_shows_what_it_learned_and_other_models_nothing_of_it(open_page: Open, create_model: Create) -> None:
    address = create_model("near", update="sls", rerank=True)
    vectors = {"tea": [1.0, 0.1, 0.0], "coffee": [0.0, 1.0, 0.2], "milk": [0.1, 0.0, -1.0]}
    instances = [{"text": "a hot drink", "vector": vector, "labels": [label]} for label, vector in vectors.items()]
    learn(address, instances * 20)
    page = open_page("overview", "near", **NARROW)
    card = page.locator("section", has=page.get_by_role("heading", name="What re-ranking has learned"))
    expect(card.get_by_text("Weight of similarity to the class")).to_be_visible()
    expect(card.get_by_text("by the index alone").first).to_be_visible()
    counted = http.get(f"{address}/stats").json()["reranking"]["n"]
    expect(card.get_by_text(str(counted), exact=True)).to_be_visible()
    fits(page, 390)
    page.get_by_label("Model", exact=True).select_option("default")
    expect(page.get_by_text("How well it ranks, over time")).to_be_visible()
    expect(card).to_be_hidden()
