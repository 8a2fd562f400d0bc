"""Parts of the page that are mounted alone, without a service: the ranked answer, and the figures of the overview."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import expect

WEB = Path(__file__).parents[2] / "service" / "abound" / "web"

MOUNT = """async () => {
    const [{ rankedAnswer }, { teaching }, { figureTiles, worsening }] =
        await Promise.all(["answer", "teach", "tiles"].map((name) => import(`/${name}.js`)));
    const ranked = Object.entries({ grain: 0.9, wheat: 0.7, trade: 0.1 });
    const labels = ranked.map(([label, p]) => ({ label, probability: p, score: p }));
    const about = { version: "live", config: { update: "sls", calibrate: true }, learned: 20 };
    const [model, place] = ["m", document.body];
    const marks = { chosen: new Map([["barley", true]]), rejected: new Set(["trade"]) };
    const lesson = teaching({ model, about }, { ranked: () => labels, place, marks });
    const [answer, before] = [{ version: "live", labels }, ["wheat", "grain"]];
    const shown = rankedAnswer({ model, about, answer, before, marks: lesson, choose() {} });

    const [window, recent] = [[10000, 0.8], [500, 0.6]].map(([n, share]) => ({ n, "R@1": share, "R@5": 0.9 }));
    const stats = { window, recent, all: { ...window, n: 20000 }, replicas: [], classes: 12, features: 1 };
    const tiles = figureTiles();
    for (const now of [0, 2, 4]) {
        const classify = { bounds: [0.001, 1], counts: [9 * now, now, 0] };
        tiles.draw({ ...stats, learned: 50 * now, classify }, about, now);
    }
    place.append(...shown.filter(Boolean), lesson.element, worsening(stats), tiles.element);
}"""


def test_components_show_what_they_are_given(browser: Any) -> None:
    with browser.new_page() as page:
        page.route("**/*.js", lambda route: route.fulfill(path=WEB / route.request.url.rsplit("/", 1)[1]))
        page.route("**/", lambda route: route.fulfill(body='<p id="said"></p>', content_type="text/html"))
        page.goto("http://page.test/")
        page.evaluate(MOUNT)
        expect(page.locator(".rank").first).to_have_text("1.grain up 1probability 90.0 %, score 0.900")
        expect(page.locator(".rank .moved")).to_have_text(["up 1", "down 1", "new"])
        wrong, chips = page.locator(".wrong[aria-pressed=true]"), page.locator(".chip")
        expect(wrong).to_have_accessible_name("trade is not right")
        expect(chips).to_have_text(["barley new label×"])
        page.get_by_role("button", name="grain is right").click()
        expect(page.get_by_text("taught as wrong")).to_have_text("Not marked, so taught as wrong: wheat (70.0 %).")
        page.get_by_label("Only these are sure").check()
        expect(page.get_by_text("The others count neither as right nor as wrong.")).to_be_visible()
        page.get_by_role("button", name="trade is right").click()
        expect(wrong).to_have_count(0)
        expect(chips).to_have_count(3)
        expect(page.locator(".figure")).to_have_text(["50", "80.0 %", "90.0 %", "10", "12", "live"])
        expect(page.get_by_text("half within 1 ms, 99 % within 1.0 s")).to_be_visible()
        expect(page.locator("body")).to_contain_text("R@1 is 60.0 % for the newest 500 events, and 80.0 % for")
