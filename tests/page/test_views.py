"""Every view of the page shows what the service says, and what is done there has its effect."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from abound import Client
from abound.service.processes.startup_page import StartupStatus, response_to
from benchmarks.serving import Serving
from tests.page.conftest import Open
from tests.page.newsroom import SUBJECTS, news

VIEWS = {
    "overview": "Overview",
    "try": "Try it",
    "ask": "Ask me",
    "labels": "Labels",
    "versions": "Versions and jobs",
    "datasets": "Data sets",
    "models": "Models",
    "keys": "Keys and audit",
}


def stats(serving: Serving) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{serving.url}/models/default/stats").json()
    return found


def painted(page: Any, heading: str) -> Any:
    """The chart under a heading, once something is drawn in it."""
    canvas = page.get_by_role("region", name=heading).locator("canvas")
    expect(canvas).to_be_visible()
    page.wait_for_function(
        """(canvas) => {
            // A copy is read: Chromium complains of a canvas that is read again and again.
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(canvas, 0, 0);
            const bytes = copy.getImageData(0, 0, canvas.width, canvas.height).data;
            return bytes.some((value, at) => at % 4 === 3 && value > 0);
        }""",
        arg=canvas.element_handle(),
    )
    return canvas


def test_overview(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    tile = page.locator(".tile")
    said = stats(serving)
    assert said["classes"] >= len(SUBJECTS)
    expect(tile.filter(has_text="Classes").locator(".figure")).to_have_text(str(said["classes"]))
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".figure")).to_have_text(
        f"{100 * said['window']['R@1']:.1f} %"
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
    budgets = page.get_by_role("region", name="Size against its bounds")
    expect(budgets.get_by_role("meter", name="Connections a feature, mean")).to_have_attribute("aria-valuemax", "25")
    expect(budgets).to_contain_text("max_features")
    expect(budgets).to_contain_text("no bound of its own: all models share the memory of a replica max_memory")


def test_events_a_second_are_counted(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    tile = page.locator(".tile").filter(has_text="Events a second")
    expect(tile.locator(".beside")).to_contain_text("in all")
    before = stats(serving)["learned"]
    body = {"instances": list(news(500, seed=5))}
    httpx.post(f"{serving.url}/learn", json=body, timeout=30).raise_for_status()
    expect(tile.locator(".beside")).to_have_text(f"{before + 500:,} in all")
    expect(tile.locator(".figure")).not_to_have_text(re.compile(r"^(0|–)$"))


def test_events_a_second_begin_anew_with_another_model_or_index(open_page: Open, serving: Serving) -> None:
    address = f"{serving.url}/models/anew"

    def learn(n: int) -> None:
        httpx.post(f"{address}/learn", json={"instances": list(news(n, seed=6))}, timeout=30).raise_for_status()

    httpx.put(address, json={}).raise_for_status()
    learn(300)
    page = open_page("overview")
    page.get_by_label("Model", exact=True).select_option("anew")
    tile = page.locator(".tile").filter(has_text="Events a second")
    beside, figure = tile.locator(".beside"), tile.locator(".figure")
    expect(beside).to_have_text("300 in all")
    httpx.delete(address).raise_for_status()
    httpx.put(address, json={}).raise_for_status()
    expect(page.get_by_text("Nothing learned yet")).to_be_visible()
    expect(tile).to_have_count(1)
    expect(tile).to_be_hidden()
    learn(200)
    expect(beside).to_have_text("200 in all")
    expect(figure).not_to_have_text(re.compile(r"^(0|–)$"))

    def restored(route: Any) -> None:
        """As if an index had been adopted that has learned 150 less."""
        answer = route.fetch()
        said = answer.json()
        milliseconds, rest = said["offset"].split("-")
        said |= {"learned": said["learned"] - 150, "offset": f"{int(milliseconds) + 1}-{rest}"}
        route.fulfill(response=answer, json=said)

    page.route(f"{address}/stats", restored)
    expect(beside).to_have_text("measuring…")
    expect(beside).to_have_text("50 in all")
    learn(40)
    expect(beside).to_have_text("90 in all")
    expect(figure).not_to_have_text(re.compile(r"^(0|–)$"))
    page.unroute(f"{address}/stats")
    httpx.delete(address).raise_for_status()


def test_ranked_as_it_is_typed_and_explained(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    expect(page.get_by_text("Nothing typed yet.")).to_be_visible()
    page.get_by_role("textbox", name="Text").press_sequentially("wheat harvest in kansas", delay=5)
    first = page.locator(".rank").first
    expect(first.locator(".name")).to_have_text("grain")
    said = httpx.post(
        f"{serving.url}/classify", json={"text": "wheat harvest in kansas", "explain": True, "version": "live"}
    ).json()["labels"]
    expect(page.locator(".rank .name")).to_have_text([one["label"] for one in said])
    expect(first.locator(".score")).to_have_text(f"{said[0]['score']:.3f}")
    painted(page, "Why")
    why = page.get_by_role("region", name="Why")
    why.get_by_text("As a table").click()
    expect(why.locator("tbody tr td:first-child")).to_have_text([one["feature"] for one in said[0]["because"]])
    page.locator(".rank").nth(1).click()
    expect(why).to_contain_text(f"For {said[1]['label']}")


def test_what_is_explained_is_the_first_label_until_another_one_is_chosen(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    box, why = page.get_by_role("textbox", name="Text"), page.get_by_role("region", name="Why")
    box.fill("wheat kansas drought")
    expect(why).to_contain_text("For grain")
    box.fill("wheat bullion ounce mine gold")
    first = page.locator(".rank").first
    expect(first.locator(".name")).to_have_text("gold")
    expect(page.locator(".rank .name", has_text="grain")).to_be_visible()  # it is among them, and was never chosen
    expect(first).to_have_attribute("aria-pressed", "true")
    expect(why).to_contain_text("For gold")
    page.locator(".rank", has_text="grain").click()
    expect(why).to_contain_text("For grain")
    box.fill("wheat bullion ounce gold")
    expect(first.locator(".name")).to_have_text("gold")
    expect(why).to_contain_text("For grain")


def test_what_is_pasted_is_sent_whole_or_refused_in_words(open_page: Open, serving: Serving) -> None:
    page = open_page("try", expected=("status of 413", "status of 422"))
    long = "wheat " + "a" * 120_000
    with page.expect_request(lambda request: request.url.endswith("/classify")) as asked:
        page.get_by_role("textbox", name="Text").focus()
        page.keyboard.insert_text(long)
    assert asked.value.post_data_json["text"] == long
    expect(page.locator(".rank .name").first).to_have_text("grain")
    page.get_by_label("Right labels").focus()
    page.keyboard.insert_text("b" * 600)
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("512")
    page.get_by_role("textbox", name="Text").fill("wheat " + "a" * 2**20)
    expect(page.get_by_role("region", name="Ranked labels").get_by_role("alert")).to_be_visible()


def test_a_chart_that_went_away_comes_back_for_fewer_features(open_page: Open) -> None:
    page = open_page("try")
    box = page.get_by_role("textbox", name="Text")
    box.fill("wheat harvest in kansas prices rise")
    painted(page, "Why")
    box.fill("")
    expect(page.get_by_text("Nothing typed yet.")).to_be_visible()
    box.fill("oil barrel")
    canvas = painted(page, "Why")
    page.wait_for_function(
        "(canvas) => canvas.clientHeight === canvas.parentElement.clientHeight", arg=canvas.element_handle()
    )


def test_a_late_answer_to_an_older_question_is_dropped(open_page: Open) -> None:
    page = open_page("try")
    held = []

    def hold(route: Any) -> None:
        if "wheat" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/classify", hold)
    box = page.get_by_role("textbox", name="Text")
    box.fill("wheat harvest in kansas")
    page.wait_for_timeout(300)
    box.fill("opec oil barrel quota")
    expect(page.locator(".rank .name").first).to_have_text("crude")
    assert len(held) == 1
    with page.expect_response(lambda answer: "wheat" in (answer.request.post_data or "")):
        held[0].continue_()
    page.wait_for_timeout(100)
    expect(page.locator(".rank .name").first).to_have_text("crude")


def test_a_correction_changes_the_answer(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    page.get_by_role("radio", name="Features").check()
    box = page.get_by_role("textbox", name="Features")
    box.fill("zeppelin: 2\nvia: air")
    expect(page.get_by_text("No label has any of these features.")).to_be_visible()
    learned = stats(serving)["learned"]
    page.get_by_label("Right labels").fill("airships")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “airships”.")).to_be_visible()
    expect(page.locator(".rank .name").first).to_contain_text("airships")
    box.fill("zeppelin: 2\nvia: sea")
    expect(page.locator(".rank .name").first).to_have_text("airships")
    page.get_by_label("Right labels").fill("<b>boats</b>")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator(".rank .name", has_text="<b>boats</b>")).to_be_visible()
    assert page.locator(".rank b").count() == 0
    for _ in range(3):
        before = page.locator(".rank .score").first.text_content()
        page.get_by_role("button", name="<b>boats</b> is right").click()
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(page.locator(".rank .score").first).not_to_have_text(before)
    expect(page.locator(".rank .name").first).to_contain_text("<b>boats</b>")
    assert stats(serving)["learned"] == learned + 5


def test_several_labels_are_chosen_and_learned_together_and_undone(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    sent = []
    page.on("request", lambda request: request.url.endswith("/learn") and sent.append(request.post_data_json))
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas zeppelin")
    ranked = page.get_by_role("button", name="grain is right")
    ranked.click()
    expect(ranked).to_have_attribute("aria-pressed", "true")
    chips = page.get_by_role("list", name="Chosen").get_by_role("listitem")
    typed = page.get_by_label("Right labels")
    typed.press_sequentially('wheat, "ships, air"')
    typed.press("Enter")
    expect(chips).to_have_text([re.compile(one) for one in ("^grain", "^wheat", "^ships, air")])
    chips.nth(1).get_by_role("button").click()
    expect(chips).to_have_count(2)
    typed.fill("aviation")
    typed.press("Control+Enter")
    expect(page.get_by_text("Learned “grain”, “ships, air”, “aviation”.")).to_be_visible()
    assert [one["labels"] for one in sent] == [["grain", "ships, air", "aviation"]]
    expect(chips).to_have_count(0)
    expect(page.locator(".rank .name", has_text="aviation")).to_be_visible()
    learned = stats(serving)["learned"]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Forgotten: “grain”, “ships, air”, “aviation”.")).to_be_visible(timeout=60_000)
    expect(page.locator(".rank .name", has_text="aviation")).to_have_count(0)
    assert stats(serving)["learned"] == learned - 1


def test_a_wrong_label_is_rejected(open_page: Open) -> None:
    page = open_page("try")
    answer = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": None, "updated": True}
    page.route("**/learn", lambda route: route.fulfill(json=answer))
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    right, wrong = (page.get_by_role("button", name=f"grain is {word}", exact=True) for word in ("right", "not right"))
    right.click()
    wrong.click()
    expect(wrong).to_have_attribute("aria-pressed", "true")
    expect(right).to_have_attribute("aria-pressed", "false")
    right.click()
    expect(wrong).to_have_attribute("aria-pressed", "false")
    wrong.click()
    page.get_by_label("Weight").select_option("0.5")
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Learn", exact=True).click()
    sent = learning.value.post_data_json
    assert (sent["labels"], sent["rejected"], sent["weight"]) == ([], ["grain"], 0.5)
    expect(page.get_by_text("Learned not “grain”.")).to_be_visible()
    expect(page.get_by_label("Weight")).to_have_value("1")


def test_digits_mark_labels_except_where_they_are_typed(open_page: Open) -> None:
    page = open_page("try")
    box = page.get_by_role("textbox", name="Text")
    box.press_sequentially("wheat harvest in kansas 2")
    marks = page.locator(".right")
    expect(marks.nth(1)).to_be_visible()
    assert page.locator(".right[aria-pressed=true]").count() == 0
    page.get_by_role("main").focus()
    page.keyboard.press("2")
    expect(marks.nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("2")
    expect(page.locator(".right[aria-pressed=true]")).to_have_count(0)


def test_bars_show_how_good_a_score_is_not_how_it_compares(open_page: Open) -> None:
    page = open_page("try")
    weak = {"labels": [{"label": "a", "score": 0.085}, {"label": "b", "score": 0.04}], "offset": "1-0.0"}
    page.route("**/classify", lambda route: route.fulfill(json=weak | {"version": "live"}))
    page.get_by_role("textbox", name="Text").fill("wheat")
    bars = page.locator(".rank > i")
    expect(bars).to_have_count(2)
    assert [bar.evaluate("(one) => parseFloat(one.style.width)") for bar in bars.all()] == [8.5, 4]


def test_a_double_click_learns_once_and_an_unsure_one_again_with_its_key(open_page: Open, serving: Serving) -> None:
    page = open_page("try", expected=("ERR_FAILED",))
    sent = []
    page.on("request", lambda request: request.url.endswith("/learn") and sent.append(request))
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    right, learn = (page.get_by_role("button", name=name, exact=True) for name in ("grain is right", "Learn"))
    right.click()
    learned = stats(serving)["learned"]
    learn.dblclick()
    expect(page.get_by_text("Learned “grain”.").or_(page.get_by_text("Name the right label"))).to_be_visible()
    expect(learn).to_be_enabled()
    assert len(sent) == 1
    assert stats(serving)["learned"] == learned + 1
    lost: list[Any] = []

    def lose(route: Any) -> None:
        route.fetch()  # it is learned, and the answer lost
        lost.append(route)
        route.abort()

    page.route("**/learn", lose, times=1)
    right.click()
    learn.click()
    expect(page.get_by_role("alert")).to_contain_text("No answer")
    assert len(lost) == 1
    learn.click()
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    keys = [request.headers["idempotency-key"] for request in sent]
    assert keys[1] == keys[2] != keys[0]
    assert stats(serving)["learned"] == learned + 2


def test_features_in_lines_are_sent_as_they_are_written(open_page: Open) -> None:
    page = open_page("try")
    page.get_by_role("radio", name="Features").check()
    lines = ["__proto__: 3", "constructor: a", "tag: a", "tag: b", "tag: b", "zip: 00100", "price: 2.50", "less: -.5"]
    lines += ["id: 12345678901234567890", "hex: 0x10", "far: Infinity", "big: 1e999", "many: 1e3", "urgent", "urgent"]
    with page.expect_request(
        lambda request: request.url.endswith("/classify") and '"many"' in (request.post_data or "")
    ) as asked:
        page.get_by_role("textbox", name="Features").fill("\n".join(lines))
    assert json.loads(asked.value.post_data)["features"] == {
        "__proto__": 3,
        "constructor": "a",
        "tag": ["a", "b"],
        "zip": "00100",
        "price": 2.5,
        "less": -0.5,
        "id": "12345678901234567890",
        "hex": "0x10",
        "far": "Infinity",
        "big": "1e999",
        "many": 1000,
        "urgent": True,
    }


def test_what_is_wrong_with_an_instance_is_said(open_page: Open) -> None:
    page = open_page("try", expected=("status of 422",))
    page.get_by_role("radio", name="Features").check()
    box = page.get_by_role("textbox", name="Features")
    box.fill('{"price": null}')
    expect(page.get_by_role("alert")).to_contain_text("must be a number, a string")
    expect(page.get_by_role("alert")).to_contain_text("features.price")
    box.fill('{"price": ')
    expect(page.get_by_text("Not JSON yet")).to_be_visible()
    box.fill("price:")
    expect(page.get_by_text("has no value yet")).to_be_visible()


def test_a_line_ends_where_there_is_nothing_to_say(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    painted(page, "How well it ranks, over time")

    def with_one_tail(route: Any) -> None:
        answer = route.fetch()
        said = answer.json()
        tail = said["trace"]["groups"]["tail"]
        middle = len(tail["n"]) // 2
        tail["R@1"] = [0.5 if at == middle else None for at in range(len(tail["n"]))]
        tail["n"] = [40] * len(tail["n"])
        route.fulfill(response=answer, json=said)

    page.route("**/models/default/stats", with_one_tail)
    canvas = page.get_by_role("region", name="How well it ranks, over time").locator("canvas")
    page.wait_for_function(
        """(canvas) => {
            const chart = Chart.getChart(canvas);
            const at = chart.data.datasets.findIndex((one) => one.label === "tail labels");
            const points = at < 0 ? [] : chart.data.datasets[at].data;
            const there = points.flatMap(({ y }, place) => (y === null ? [] : [place]));
            const seen = (place) => chart.getDatasetMeta(at).data[place].options.radius > 0;
            return there.length === 1 && seen(there[0]) && chart.data.datasets.every((one) => !one.spanGaps);
        }""",
        arg=canvas.element_handle(),
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_label_is_clamped_and_never_widens_the_page(open_page: Open, serving: Serving, width: int) -> None:
    address, long = f"{serving.url}/models/long", "A" * 500
    httpx.put(address, json={}).raise_for_status()
    httpx.post(f"{address}/learn", json={"text": "wheat", "labels": [long, "top_up_reverted"]}).raise_for_status()
    page = open_page("labels", viewport={"width": width, "height": 844})
    page.get_by_label("Model", exact=True).select_option("long")
    expect(page.locator(".rank .name")).to_have_text([long, "top_up_reverted"])
    expect(page.locator(".rank .name wbr")).to_have_count(2)
    for view in ("labels", "try"):
        if view == "try":
            page.get_by_role("link", name=VIEWS[view]).click()
            page.get_by_role("textbox", name="Text").fill("wheat")
            page.locator(".right").first.click()
            page.get_by_role("button", name="Learn", exact=True).click()
            expect(page.get_by_text(re.compile("^Learned “A"))).to_be_visible()
            page.locator(".right").first.click()
        name = page.locator(".rank .name").first
        expect(name).to_have_attribute("title", long)
        assert name.bounding_box()["height"] < 90
        name.click()
        said = page.locator("strong.break").first
        expect(said).to_have_attribute("title", long)
        assert said.bounding_box()["height"] < 90
        assert page.evaluate("document.documentElement.scrollWidth") == width, view
    httpx.delete(address).raise_for_status()


def test_a_phone_shows_the_text_and_the_best_labels_on_one_screen(open_page: Open) -> None:
    page = open_page("try", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    expect(page.locator(".rank").first).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    ends = [page.locator(".rank").nth(at).bounding_box() for at in range(3)]
    assert ends[2]["y"] + ends[2]["height"] <= 844, ends
    tops = [page.get_by_role("region", name=name).bounding_box()["y"] for name in ("Ranked labels", "Teach", "Options")]
    assert tops == sorted(tops)


def test_replicas_are_told_within_the_card(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    table = page.get_by_role("region", name="Table: Replicas")
    expect(table.locator("tbody tr")).to_have_count(2)
    assert table.evaluate("(scroll) => scroll.scrollWidth - scroll.clientWidth") <= 0


def test_an_address_that_names_no_view_shows_the_first_one(open_page: Open) -> None:
    for name in ("constructor", "toString", "__proto__", "nothing", "%"):
        page = open_page(name)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.locator(".tile").first).to_be_visible()


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


def test_labels(open_page: Open, serving: Serving) -> None:
    page = open_page("labels")
    said = httpx.get(f"{serving.url}/models/default/labels", params={"contains": "OFF"}).json()
    expect(page.locator(".label").first).to_be_visible()
    page.get_by_label("Contains").fill("OFF")
    expect(page.locator(".label .name")).to_have_text(said["labels"])
    expect(page.locator(".label .score")).to_have_text([f"learned {n:,}×" for n in said["learned"]])
    page.locator(".label", has_text="coffee").click()
    about = httpx.get(f"{serving.url}/models/default/labels/coffee").json()
    points = page.get_by_role("region", name="What points to it")
    expect(points).to_contain_text(f"coffee was learned {about['learned']:,} times. {about['total']:,} features vote")
    painted(page, "What points to it")
    points.get_by_text("As a table").click()
    expect(points.locator("tbody tr td:first-child")).to_have_text([one["feature"] for one in about["features"]])
    page.get_by_label("Contains").fill("nothing of it")
    expect(page.get_by_text("No label has that in it.")).to_be_visible()


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.long)])
def test_registered_names_stand_under_labels_and_metadata_is_shown(
    open_page: Open, serving: Serving, width: int
) -> None:
    address, name = f"{serving.url}/models/registered", "Wheat <i>& rye</i> " + "x" * 400
    metadata = {"colour": "red", "synonyms": ["corn", "maize"], "url": "https://example.org/" + "a" * 300}
    httpx.put(address).raise_for_status()
    labels = [{"label": "c7", "name": name, "parent": "c0", "metadata": metadata}]
    httpx.put(f"{address}/labels", json={"labels": labels}).raise_for_status()
    httpx.post(f"{address}/learn", json={"text": "wheat", "labels": ["c9"]}).raise_for_status()
    page = open_page("labels", viewport={"width": width, "height": 844})
    page.get_by_label("Model", exact=True).select_option("registered")
    page.locator(".label", has_text="c7").click()
    facts = page.get_by_role("region", name="What points to it").locator("dl.facts")
    expect(facts.locator("dt")).to_have_text(["name", "parent", "colour", "synonyms", "url"])
    expect(facts.locator("dd")).to_have_text([name, "c0", "red", '["corn","maize"]', metadata["url"]])
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator(".label", has_text="c9").click()
    expect(page.get_by_role("region", name="What points to it")).to_contain_text("c9 was learned 1 time.")
    expect(facts).to_have_count(0)
    page.get_by_role("link", name=VIEWS["try"]).click()
    page.get_by_role("textbox", name="Text").fill("wheat")
    rows = page.locator(".ranks li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="c7").locator(".called")).to_have_text(name)
    expect(rows.filter(has_text="c7").locator(".name")).to_have_text("c7")
    expect(rows.filter(has_text="c9").locator(".called")).to_have_count(0)
    upper, lower = (rows.filter(has_text="c7").locator(one).bounding_box() for one in (".name", ".called"))
    assert upper["y"] + upper["height"] <= lower["y"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") == width
    httpx.delete(address).raise_for_status()


def test_labels_that_no_path_can_carry(open_page: Open, serving: Serving) -> None:
    labels = ["..", ".", "a/../b", "%2e"]
    body = {"instances": [{"text": f"word{at}", "labels": [label]} for at, label in enumerate(labels)]}
    httpx.put(f"{serving.url}/models/dots").raise_for_status()
    httpx.post(f"{serving.url}/models/dots/learn", json=body).raise_for_status()
    page = open_page("labels")
    page.get_by_label("Model", exact=True).select_option("dots")
    expect(page.locator(".label").first).to_contain_text(labels[0])  # those of the model before are gone
    for at, label in enumerate(labels):
        page.locator(".label").nth(at).click()
        expect(page.get_by_role("region", name="What points to it")).to_contain_text(f"{label} was learned 1 time.")
    httpx.delete(f"{serving.url}/models/dots").raise_for_status()


def test_labels_that_leave_no_trace_are_shown_escaped(open_page: Open, serving: Serving) -> None:
    looks = {
        " ": "␣",
        "  ": "␣␣",
        "\u200b": r"\u200b",
        "\u3164": r"\u3164",
        "\u202eliah": r"\u202eliah",
        "a\u200bb": r"a\u200bb",
        "a b": "a b",
        "a  b": "a ␣b",
        "a ": "a␣",
        "a\nb": r"a\u000ab",
        "東京\u3000駅": "東京\u3000駅",
        "می\u200cخواهم": "می\u200cخواهم",
        "👩\u200d🚀❤\ufe0f": "👩\u200d🚀❤\ufe0f",
    }
    body = {"instances": [{"features": {"f": 1, f"word{at}": 1}, "labels": [one]} for at, one in enumerate(looks)]}
    httpx.put(f"{serving.url}/models/unseen").raise_for_status()
    httpx.post(f"{serving.url}/models/unseen/learn", json=body).raise_for_status()
    page = open_page("labels")
    page.get_by_label("Model", exact=True).select_option("unseen")
    page.wait_for_function(
        "(looks) => [...document.querySelectorAll('.label .name')].map((one) => one.textContent).join('|') === looks",
        arg="|".join(looks.values()),
    )
    page.locator(".label").first.click()
    expect(page.get_by_role("region", name="What points to it")).to_contain_text("␣ was learned 1 time.")
    page.get_by_role("link", name="Try it").click()
    page.get_by_role("radio", name="Features").check()
    page.get_by_role("textbox", name="Features").fill("word4")
    expect(page.locator(".rank .name").first).to_have_text(r"\u202eliah")
    right = page.get_by_role("button", name=r"\u202eliah is right")
    right.click()
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Learn", exact=True).click()
    assert learning.value.post_data_json["labels"] == ["\u202eliah"]
    expect(page.get_by_text(r"Learned “\u202eliah”.")).to_be_visible()
    httpx.delete(f"{serving.url}/models/unseen").raise_for_status()


def test_another_model_is_chosen_and_its_name_may_be_odd(open_page: Open, serving: Serving) -> None:
    bounds = {"max_features": 1000, "max_classes": 50, "max_memory": 2**24}
    httpx.put(f"{serving.url}/models/an.other_1-b", json=bounds).raise_for_status()
    page = open_page("try")
    page.get_by_label("Model", exact=True).select_option("an.other_1-b")
    expect(page.get_by_text("This model has learned nothing yet.")).to_be_visible()
    assert page.url.endswith("#try/an.other_1-b")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("an.other_1-b")
    expect(page.get_by_role("region", name="Nothing learned yet")).to_be_visible()
    instance = {"text": "wheat", "labels": ["grain"]}
    httpx.post(f"{serving.url}/models/an.other_1-b/learn", json=instance).raise_for_status()
    expect(page.get_by_text("Too few events yet.")).to_be_visible()
    budgets = page.get_by_role("region", name="Size against its bounds")
    for name, bound in (("Features", 1000), ("Classes", 50), ("Memory", 2**24)):
        expect(budgets.get_by_role("meter", name=name, exact=True)).to_have_attribute("aria-valuemax", str(bound))
    httpx.delete(f"{serving.url}/models/an.other_1-b").raise_for_status()


def test_a_model_that_is_not_there_is_said_to_be_missing_and_no_other_one_is_taught(
    open_page: Open, serving: Serving
) -> None:
    page = open_page("try")
    expect(page.get_by_text("Nothing typed yet.")).to_be_visible()
    for reload in (False, True):
        page.evaluate("location.hash = '#try/shop-deleted'")
        if reload:
            page.reload()
        expect(page.get_by_role("alert")).to_contain_text("There is no model “shop-deleted”.")
        expect(page.get_by_role("button", name="Learn", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.get_by_role("alert")).to_contain_text("There is no model “shop-deleted”.")
    page.get_by_label("Model", exact=True).select_option("default")
    expect(page.locator(".tile").first).to_be_visible()
    assert page.url.endswith("#overview/default")


def test_a_rebuild_begins_with_a_yes_and_says_what_its_fields_mean(open_page: Open, serving: Serving) -> None:
    instance = {"text": "zebra crossing", "labels": ["forgettable"], "source": "to be forgotten"}
    httpx.post(f"{serving.url}/learn", json=instance).raise_for_status()
    page = open_page("versions")
    asked = []
    page.on("request", lambda request: request.method == "POST" and asked.append(request.post_data_json))
    form = page.get_by_role("region", name="Start a job")
    form.get_by_label("Method", exact=True).select_option("forget")
    expect(form.get_by_label("since")).to_have_attribute("type", "datetime-local")
    form.get_by_label("since").fill("2020-02-03T04:05:06")
    form.get_by_label("source").fill("to be forgotten")
    form.get_by_label("reason").fill("a test")
    dialog = page.get_by_role("dialog", name="Start forget on default?")
    form.get_by_role("button", name="Start").click()
    expect(dialog).to_contain_text("1 event would be forgotten.", timeout=60_000)
    expect(dialog).to_contain_text("Nothing brings them back. reason=a test source=to be forgotten since=Feb 3, 2020")
    dialog.get_by_role("button", name="Leave it").click()
    expect(dialog).to_have_count(0)
    form.get_by_role("button", name="Start").click()
    dialog.get_by_role("button", name="Start it").click(timeout=60_000)
    expect(form.get_by_text("Taken: forget is ")).to_be_visible()
    assert [one["params"].get("dry_run") for one in asked] == [True, True, None]
    job = page.locator(".job").first
    expect(job).to_contain_text("source=to be forgotten")
    expect(job.locator(".tag")).to_have_text("succeeded", timeout=60_000)


def test_while_the_service_starts_the_page_says_so_and_comes_by_itself(open_page: Open, serving: Serving) -> None:
    page = open_page("labels", expected=("status of 503",))
    expect(page.locator(".label").first).to_be_visible()
    head, _, body = response_to(b"/", StartupStatus("compiling <kernels>", 0.25)).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if not line.startswith("Connection"))
    page.route(f"{serving.url}/", lambda route: route.fulfill(status=503, headers=headers, body=body))
    page.reload()
    expect(page.get_by_role("heading", name="Abound is starting")).to_be_visible()
    expect(page.get_by_text("Compiling <kernels>")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    page.unroute(f"{serving.url}/")
    expect(page.locator(".label").first).to_be_visible()
    assert page.url.endswith("#labels/default")


def test_a_page_that_nobody_could_answer_goes_on_by_itself(open_page: Open, serving: Serving) -> None:
    page = open_page("labels", expected=("status of 503", "ERR_FAILED"))
    expect(page.locator(".label").first).to_be_visible()
    refused = {
        "title": "This replica cannot answer now",
        "status": 503,
        "detail": "not ready: loading",
        "retry_after": 1,
    }
    asked: list[Any] = []

    def refuse(route: Any) -> None:
        asked.append(route)
        if len(asked) % 2:
            route.fulfill(status=503, json=refused)
        else:
            route.abort()

    page.route(f"{serving.url}/models", refuse)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("not ready: loading")
    expect(page.get_by_role("alert")).to_contain_text("The service cannot be reached.")
    page.unroute(f"{serving.url}/models")
    expect(page.locator(".label").first).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_job_from_a_form_makes_a_version_that_serves_and_goes(open_page: Open, serving: Serving) -> None:
    page = open_page("versions")
    form = page.get_by_role("region", name="Start a job")
    form.get_by_label("Method", exact=True).select_option("ind")
    form.get_by_text("Parameters", exact=True).click()
    form.get_by_label("seed").fill("7")
    form.get_by_role("button", name="Start").click()
    job = page.locator(".job").first
    expect(job).to_contain_text("seed=7")
    expect(job.locator(".tag")).to_have_text("succeeded", timeout=60_000)
    expect(job).to_contain_text("R@1")
    version, *_ = httpx.get(f"{serving.url}/models/default/versions").json()["versions"]
    assert (version["method"], version["seed"]) == ("ind", 7)
    rows = page.get_by_role("region", name="Versions", exact=True).locator("tbody tr")
    row = rows.filter(has_text=version["id"][:8])
    expect(row).to_be_visible()

    other = open_page("try")
    refused = []
    other.on("response", lambda answer: answer.status == 422 and refused.append(answer.url))
    typed, ranked = other.get_by_role("textbox", name="Text"), other.get_by_role("region", name="Ranked labels")
    typed.fill("wheat harvest")
    expect(ranked).to_contain_text("By the live index")

    row.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("dialog")).to_contain_text("learning goes on in the live index only")
    page.get_by_role("dialog").get_by_role("button", name="Activate").click()
    now = page.get_by_role("region", name="Serving now")
    expect(now.get_by_text(f"ind {version['id'][:8]} serves.")).to_be_visible(timeout=30_000)
    expect(row.get_by_text("serving")).to_be_visible()
    expect(now).to_contain_text("It answers alone, and does not change.")
    baseline = rows.filter(has_text="live index")
    shown = float(baseline.locator("td").nth(3).text_content().removesuffix(" %"))
    assert shown == pytest.approx(100 * version["metrics"]["live R@1"], abs=0.06)
    assert httpx.get(f"{serving.url}/models/default").json()["version"] == version["id"]

    typed.fill("wheat harvest in")
    expect(ranked).to_contain_text(f"By version {version['id']}")
    teach = other.get_by_role("region", name="Teach it")
    expect(teach).to_contain_text(f"Version {version['id'][:8]} answers, and learning changes only the live index.")
    other.get_by_label("Ranked by").select_option("live")
    expect(teach).to_contain_text("Learned at once by all replicas")
    other.get_by_label("Ranked by").select_option("")
    expect(other.get_by_label("Ranked by").locator("option[value=blend]")).to_have_count(1)
    typed.fill("wheat harvest in kansas")
    expect(other.locator(".rank .name").first).to_have_text("grain")
    expect(ranked.get_by_role("alert")).to_have_count(0)
    assert refused == []

    now.get_by_role("button", name="Roll back").or_(
        now.get_by_role("button", name="Serve the live index")
    ).first.click()
    page.get_by_role("dialog").locator("button.primary").click()
    expect(now.get_by_text("the live index serves.")).to_be_visible(timeout=30_000)
    assert httpx.get(f"{serving.url}/models/default").json()["version"] == "live"
    typed.fill("wheat harvest in texas")
    expect(ranked).to_contain_text("By the live index")
    painted(other, "Why")


def test_a_double_click_starts_one_job_and_an_unsure_one_again_with_its_key(open_page: Open, serving: Serving) -> None:
    page = open_page("versions", expected=("ERR_FAILED",))
    sent = []
    page.on("request", lambda request: request.method == "POST" and sent.append(request))
    form = page.get_by_role("region", name="Start a job")
    form.get_by_label("Method", exact=True).select_option("ind")
    start = form.get_by_role("button", name="Start")
    started = {job["id"] for job in httpx.get(f"{serving.url}/jobs").json()["jobs"]}
    start.dblclick()
    expect(form.get_by_text(re.compile("ind (is|has) "))).to_be_visible()
    expect(start).to_be_enabled()
    assert len(sent) == 1

    def lose(route: Any) -> None:
        route.fetch()  # it is taken, and the answer lost
        route.abort()

    page.route("**/jobs", lose, times=1)
    start.click()
    expect(form.get_by_role("alert")).to_contain_text("No answer")
    expect(start).to_be_enabled()
    start.click()
    expect(form.get_by_text(re.compile("ind (is|has) "))).to_be_visible()
    keys = [request.headers["idempotency-key"] for request in sent]
    assert keys[1] == keys[2] != keys[0]
    found = {job["id"] for job in httpx.get(f"{serving.url}/jobs").json()["jobs"]} - started
    assert len(found) == 2
    for job in found:
        cancelled = httpx.delete(f"{serving.url}/jobs/{job}")
        assert cancelled.is_success or cancelled.status_code == 409  # it has ended by now


def test_a_version_contends(open_page: Open, serving: Serving) -> None:
    with Client(serving.url) as client:
        [*_, job] = client.follow(client.submit({"method": "frequency"})["id"])
    page = open_page("versions")
    rows = page.get_by_role("region", name="Versions", exact=True).locator("tbody tr")
    row = rows.filter(has_text=job["version"][:8])
    asked = []
    page.on("request", lambda request: "/contenders" in request.url and asked.append(request.method))
    row.get_by_role("button", name=re.compile("^Let ")).dblclick()
    expect(page.get_by_text("contends: it is scored from the next event on.")).to_be_visible()
    expect(row.get_by_role("button", name="Stop contending")).to_be_visible(timeout=30_000)
    row.get_by_role("button", name="Stop contending").click()
    expect(page.get_by_text("contends no more.")).to_be_visible()
    assert [one for one in asked if one != "GET"] == ["POST", "DELETE"]


def test_a_wrong_parameter_is_said_where_it_is(open_page: Open) -> None:
    page = open_page("versions", expected=("status of 422",))
    form = page.get_by_role("region", name="Start a job")
    form.get_by_label("Method", exact=True).select_option("ind")
    form.get_by_text("Parameters", exact=True).click()
    form.get_by_label("held_out").first.fill("0.9")
    form.get_by_role("button", name="Start").click()
    expect(form.get_by_role("alert")).to_contain_text("held_out")


def test_an_upload_goes_on_while_another_view_is_shown(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets")
    held: list[Any] = []
    page.route("**/datasets/news-on?*", lambda route: held.append(route))
    file = tmp_path / "news-on.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in news(20)))
    page.get_by_label("File").set_input_files(file)
    page.get_by_label("Name").fill("news-on")
    page.get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".tile").first).to_be_visible()
    page.get_by_role("link", name="Data sets").click()
    expect(page.get_by_label("Uploaded")).to_be_visible()
    expect(page.get_by_role("button", name="Upload")).to_be_disabled()
    held.pop().continue_()
    expect(page.get_by_text("“news-on” is there.")).to_be_visible(timeout=120_000)
    row = page.get_by_role("region", name="Data sets").locator("tbody tr")
    expect(row).to_contain_text("20")
    row.get_by_role("button", name="Delete news-on").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No data sets yet.")).to_be_visible()


def test_the_check_of_an_upload_shows_how_far_it_is(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets")
    file = tmp_path / "large.jsonl.gz"
    line = json.dumps(next(news(1))).encode() + b"\n"
    file.write_bytes(gzip.compress(line * 400_000, compresslevel=1))
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text(re.compile(r"^All sent\. [1-9]\d? % of the file is read and checked\.$"))).to_be_visible()
    progress = page.get_by_label("Checked")
    assert 0 < float(progress.get_attribute("value") or 0) < 1
    expect(page.get_by_text("“large.jsonl.gz” is there.")).to_be_visible(timeout=120_000)
    found = httpx.get(f"{serving.url}/datasets").json()
    assert (found["datasets"][0]["instances"], found["checking"]) == (400_000, {})
    httpx.delete(f"{serving.url}/datasets/large.jsonl.gz").raise_for_status()


def test_a_data_set_is_uploaded_and_deleted(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets", expected=("status of 422",))
    broken = tmp_path / "broken.svm"
    broken.write_text("no numbers here\n")
    page.get_by_label("File").set_input_files(broken)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("broken.svm")
    file = tmp_path / "news.jsonl.gz"
    file.write_bytes(gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in news(200))))
    page.get_by_label("File").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("news.jsonl.gz")
    page.get_by_label("Name").fill("news")
    page.get_by_label("File").set_input_files(broken)
    page.get_by_label("File").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("news")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("“news” is there.")).to_be_visible(timeout=120_000)
    row = page.get_by_role("region", name="Data sets").locator("tbody tr")
    expect(row).to_contain_text("200")
    row.get_by_role("button", name="Delete news").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No data sets yet.")).to_be_visible()
