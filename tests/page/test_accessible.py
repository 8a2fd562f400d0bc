"""Anyone can use it: by keyboard, in the dark, on a phone, by ear."""

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.conftest import VIEWS, Open, serve_version

pytestmark = pytest.mark.long

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


SMALL = """[...document.querySelectorAll("button, select, input:not([type=radio], [type=checkbox]), summary, nav a")]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 24)
    .map((one) => one.outerHTML)"""


LUMINANCE = """(() => {
    const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
})()"""


def to(page: Any, view: str) -> None:
    """Go to a view, and wait until it shows what it asked for."""
    page.evaluate("(view) => { location.hash = `${view}/default`; }", view)
    settled(page, view)


def settled(page: Any, view: str) -> None:
    """Wait until a view shows what it asked for."""
    expect(page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
    expect(page.locator(f"#view > .{view} .card:visible").first).to_be_visible()
    if view == "overview":
        expect(page.locator(".tile").first).to_be_visible()
        expect(page.locator(".plot svg").first).to_be_visible()
    elif view == "try":
        page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
        expect(page.locator(".rank").first).to_be_visible()
    elif view == "labels":
        page.locator(".label").first.click()
        expect(page.locator(".bars")).to_be_visible()
    elif view == "events":
        expect(page.locator("tbody tr").first).to_be_visible()
    elif view == "versions":
        expect(page.get_by_label("Method", exact=True)).to_be_visible()
        page.get_by_label("Method", exact=True).select_option("swnn")
        page.get_by_text("Parameters", exact=True).click()


def tables(page: Any) -> None:
    """Open the table of every chart."""
    for summary in page.get_by_text("As a table", exact=True).all():
        summary.click()


def barriers(page: Any, rules: list[str] = RULES) -> None:
    """Nothing may be found by the rules of axe."""
    found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_barrier_is_found(open_page: Open, width: int) -> None:
    """By the rules of axe: names, roles, landmarks, headings, and contrast in both themes."""
    page = open_page("overview", color_scheme="light", viewport={"width": width, "height": 844})
    for view in VIEWS:
        to(page, view)
        tables(page)
        assert (page.get_by_role("region", name="Table: ").count() >= 3) or view != "overview"
        barriers(page)
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        barriers(page, ["cat.color"])
        assert page.evaluate(LUMINANCE) < 0.1
        page.emulate_media(color_scheme="light", reduced_motion="reduce")


def fits(page: Any, width: int) -> None:
    """Nothing is wider than the window, and axe finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") == width
    barriers(page)


def ranked_answers(page: Any) -> None:
    """A right label, a wrong one, and a lesson that can be undone."""
    answer = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": 2, "updated": True}
    page.route("**/learn", lambda route: route.fulfill(json=answer))
    to(page, "try")
    page.get_by_role("button", name="grain is right", exact=True).click()
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    page.get_by_role("button", name="grain is right", exact=True).click()
    page.locator(".wrong").nth(1).click()
    expect(page.locator("[aria-pressed=true]:is(.right, .wrong)")).to_have_count(2)


def active_version(page: Any) -> None:
    serve_version(page)
    to(page, "versions")
    expect(page.get_by_text("It answers alone, and does not change.")).to_be_visible()
    expect(page.get_by_text("Challengers against what is served")).to_be_attached()


def active_version_in_the_overview(page: Any) -> None:
    serve_version(page)
    to(page, "overview")
    expect(page.locator(".tile").filter(has_text="of version aaaaaaaa")).to_be_visible()


def active_version_ranks(page: Any) -> None:
    serve_version(page)
    to(page, "try")
    expect(page.get_by_text("Only the live index can explain its answers.")).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "state", [ranked_answers, active_version, active_version_in_the_overview, active_version_ranks]
)
def test_no_barrier_is_found_in_a_state(open_page: Open, state: Callable[[Any], None], width: int) -> None:
    """By the rules of axe, in both themes: what a view shows only after a click, or of other data."""
    page = open_page("keys", color_scheme="light", viewport={"width": width, "height": 844})
    settled(page, "keys")
    state(page)
    tables(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert (page.evaluate(LUMINANCE) < 0.1) == (scheme == "dark")
        fits(page, width)


def test_a_phone_scrolls_in_one_direction(open_page: Open) -> None:
    page = open_page("overview", viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    for view in VIEWS:
        to(page, view)
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360], view
        assert page.evaluate(SMALL) == [], view
        barriers(page)


def test_all_by_keyboard(open_page: Open) -> None:
    page = open_page("overview")
    expect(page.locator(".tile").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.textContent") == "Try it":
            break
    link = page.get_by_role("link", name="Try it")
    expect(link).to_be_focused()
    outline = "getComputedStyle(document.activeElement)"
    assert page.evaluate(f"[{outline}.outlineStyle, parseFloat({outline}.outlineWidth) >= 2]") == ["solid", True]
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Try it")
    expect(page.get_by_role("main")).to_be_focused()
    expect(page.get_by_role("textbox", name="Text")).to_be_visible()
    reached = []
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("wheat harvest in kansas")
    expect(page.locator(".rank").first).to_be_visible()
    expect(page.locator("#said")).to_contain_text("first grain")
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
        )
        if reached[-1] == "grain is right":
            break
    assert reached[-1] == "grain is right", reached
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
