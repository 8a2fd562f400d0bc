"""Views and models by address, and what the page says while nobody answers."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from abound.processes.startup_page import StartupStatus, response_to
from benchmarks.serving import Serving
from tests.page.conftest import Create, Open, http


def test_an_address_that_names_no_view_shows_the_first_one(open_page: Open) -> None:
    for name in ("constructor", "toString", "__proto__", "nothing", "%"):
        page = open_page(name)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.locator(".tile").first).to_be_visible()


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


def test_a_view_that_is_left_takes_no_input_and_links_name_the_next_model(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    expect(page.get_by_text("Nothing typed yet.")).to_be_visible()
    held: list[Any] = []
    page.route(f"{serving.url}/models", lambda route: held.append(route))
    page.get_by_role("textbox", name="Text").focus()
    page.get_by_role("link", name="Labels").click()
    while not held:
        page.wait_for_timeout(20)
    page.evaluate("document.querySelector('textarea').focus()")
    page.keyboard.type("wheat")
    expect(page.locator("textarea").first).to_have_value("")
    page.evaluate("location.hash = 'labels/other'")
    expect(page.get_by_role("link", name="Overview")).to_have_attribute("href", "#overview/other")
    page.evaluate("location.hash = 'labels/default'")
    while len(held) < 3:
        page.wait_for_timeout(20)
    held[-1].continue_()
    page.locator(".label").first.click()
    expect(page.get_by_role("region", name="What points to it")).to_contain_text("was learned")


def test_a_model_that_appears_later_is_shown_then(open_page: Open, create_model: Create) -> None:
    page = open_page("try", "later")
    expect(page.get_by_role("alert")).to_contain_text("There is no model “later”.")
    create_model("later")
    expect(page.get_by_role("button", name="Learn", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_label("Model", exact=True)).to_have_value("later")


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


@pytest.mark.parametrize("answer", ["of a proxy", "cut"])
def test_an_unreadable_answer_is_said_until_a_better_one_comes(open_page: Open, cut_url: str, answer: str) -> None:
    page = open_page("overview", expected=("ERR_CONTENT_LENGTH_MISMATCH",))

    def spoil(route: Any) -> None:
        if answer == "cut":
            route.continue_(url=cut_url)
        else:
            route.fulfill(status=200, content_type="text/html", body="<p>log in")

    page.route("**/models/default/stats", spoil)
    said = {"of a proxy": "none of the service's", "cut": "The service cannot be reached."}[answer]
    expect(page.get_by_role("alert")).to_contain_text(said)
    page.unroute("**/models/default/stats")
    expect(page.get_by_role("alert")).to_have_count(0)
