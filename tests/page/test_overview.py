"""The overview: what it draws and what it leaves out, and the words that it explains."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import Open, painted, stats
from tests.page.newsroom import SUBJECTS


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
        f"of the newest {said['window']['n']:,} events; {100 * said['recent']['R@1']:.1f} % of the newest 500, "
        f"{100 * said['all']['R@1']:.1f} % of all"
    )
    expect(tile.filter(has_text="Events a second").locator(".beside")).to_have_text(re.compile(r"^[\d,]+ in all$"))
    painted(page, "How well it ranks, over time")
    expect(page.get_by_role("region", name="Frequent and rare labels").locator("tbody tr")).to_have_count(3)
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
