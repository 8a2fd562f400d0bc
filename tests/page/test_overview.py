"""The overview: what it draws and the words that it explains; views and models by address; a service that starts."""

import re

from playwright.sync_api import expect

from abound.processes.startup_page import StartupStatus, response_to
from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Create, Open, as_percent, http, painted, stats


def test_overview(open_page: Open, serving: Serving) -> None:
    page = open_page("overview")
    tile = page.locator(".tile")
    said = stats(serving)
    expect(tile.filter(has=page.get_by_role("button", name="R@1")).locator(".figure")).to_have_text(
        as_percent(said["window"]["R@1"])
    )
    painted(page, "How well it ranks, over time")
    expect(page.get_by_role("region", name="Frequent and rare labels").locator("tbody tr")).to_have_count(3)
    trace = page.get_by_role("region", name="How well it ranks, over time")
    trace.get_by_text("As a table").click()
    expect(trace.locator("tbody tr")).to_have_count(len(said["trace"]["learned"]))
    expect(trace.locator(".plot text", has_text="events learned")).to_be_visible()
    trace.get_by_label("By time").check()
    expect(trace.locator(".plot text", has_text="time")).to_have_text("time")
    expect(trace.locator("th").first).to_have_text("time")
    trace.locator(".plot").hover()
    expect(trace.locator(".plot .tip strong")).to_have_text(re.compile(r"^on .*\d:\d\d"))
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


CHART = """async () => {
    const { LineChart } = await import(document.querySelector("link[href$='charts.js']").href);
    const axis = { title: "x", format: String, said: (x) => `at ${x}`, zero: true };
    const chart = new LineChart({ title: "Chart", x: axis, y: { title: "y", format: String } });
    const colours = [["a", "head", [3, 4, null, 5, 6, null, 7]], ["b", "tail", [1, 1, 1, 1, 1, 1, 1]]];
    const series = colours.map(([name, colour, ys]) => ({ name, colour, points: ys.map((y, x) => [100 * x, y]) }));
    document.getElementById("view").replaceChildren(chart.element);
    chart.set({ series, said: "said", columns: ["#x"], rows: [] });
}"""


def test_a_chart_has_round_ticks_gaps_and_tells_what_is_pointed_at(open_page: Open) -> None:
    page = open_page("models", **NARROW)
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    page.evaluate(CHART)
    plot, line = page.locator(".plot"), page.locator(".plot .line").first
    expect(page.get_by_role("img", name="said")).to_be_visible()
    expect(plot.locator("text")).to_have_text([*"1234567", "0", "200", "400", "600", "y", "x"])
    assert line.locator("path").get_attribute("d").count("M") == 3
    expect(line.locator("circle")).to_have_count(1)
    expect(page.locator(".legend span")).to_have_text(["a", "b"])
    ink = line.locator("path").evaluate("(path) => getComputedStyle(path).stroke")
    page.emulate_media(color_scheme="light")
    assert line.locator("path").evaluate("(path) => getComputedStyle(path).stroke") != ink
    tip, box = plot.locator(".tip"), plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 60)
    expect(tip).to_have_text("at 600a: 7b: 1")
    page.mouse.move(box["x"] + 40 + (box["width"] - 40) / 3, box["y"] + 60)
    expect(tip).to_have_text("at 200b: 1")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()


def test_another_model_is_chosen_and_its_name_may_be_odd(open_page: Open, create_model: Create) -> None:
    bounds = {"max_features": 1000, "max_classes": 50, "max_memory": 2**24}
    address = create_model("an.other_1-b", **bounds)
    page = open_page("try")
    page.get_by_label("Model", exact=True).select_option("an.other_1-b")
    expect(page.get_by_text("This model has learned nothing yet.")).to_be_visible()
    assert page.url.endswith("#try/an.other_1-b")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("an.other_1-b")
    expect(page.get_by_role("region", name="Nothing learned yet")).to_be_visible()
    instance = {"text": "wheat", "labels": ["grain"]}
    http.post(f"{address}/learn", json=instance).raise_for_status()
    expect(page.get_by_text("Too few events yet.")).to_be_visible()
    budgets = page.get_by_role("region", name="Size against its bounds")
    for name, bound in (("Features", 1000), ("Classes", 50), ("Memory", 2**24)):
        expect(budgets.get_by_role("meter", name=name, exact=True)).to_have_attribute("aria-valuemax", str(bound))


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
