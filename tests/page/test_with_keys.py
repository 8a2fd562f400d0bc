"""The page of a service that asks for keys."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open, give
from tests.support.served import Served

pytestmark = pytest.mark.long


def test_it_asks_for_a_key_and_goes_on_with_it(open_page: Open, locked: tuple[Served, dict[str, str]]) -> None:
    service, secrets = locked
    page = open_page("overview", url=service.url, expected=("status of 401",))
    expect(page.get_by_role("dialog", name="A key, please")).to_be_visible()
    give(page, "no such key")
    expect(page.get_by_role("dialog")).to_be_visible()
    give(page, "nosuchkey")
    expect(page.get_by_role("dialog", name="This key does not open the service")).to_be_visible()
    give(page, secrets["classify"])
    expect(page.locator(".tile").first).to_be_visible()
    assert page.evaluate("[Object.values(sessionStorage), Object.values(localStorage)]") == [
        [secrets["classify"]],
        ["default"],  # the model that was shown last
    ]
    page.reload()
    expect(page.locator(".tile").first).to_be_visible()
    assert secrets["classify"] not in page.content()
    page.get_by_role("button", name="Key", exact=True).click()
    expect(page.get_by_role("dialog", name="A key, please")).to_be_visible()


def test_no_form_is_shown_for_what_a_scope_does_not_allow(open_page, locked):
    service, secrets = locked
    page = open_page("try", url=service.url)
    asked = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(service.url)))
    give(page, secrets["classify"])
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    expect(page.locator(".rank").first).to_be_visible()
    expect(page.get_by_text("To teach it takes a key with the scope learn")).to_be_visible()
    expect(page.get_by_role("button", name="Learn", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Versions and jobs").click()
    now = page.get_by_role("region", name="Serving now")
    expect(now).to_contain_text("enter it as a challenger, takes a key with the scope admin")
    expect(page.get_by_role("region", name="Start a job")).to_be_hidden()
    for title in ("Data sets", "Keys and audit", "To review"):
        expect(page.get_by_role("link", name=title)).to_be_hidden()

    page.get_by_role("button", name="Key", exact=True).click()
    give(page, secrets["learn"])
    page.get_by_role("link", name="Try it").click()
    asked.clear()
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    page.get_by_label("Right labels").fill("grain")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    ranked = page.get_by_role("region", name="Ranked labels")
    expect(ranked).to_contain_text("To see labels ranked takes a key with the scope classify")
    assert "/models/default/classify" not in asked


def test_a_labeller_reviews_texts_and_sees_all_events(open_page: Open, locked: tuple[Served, dict[str, str]]) -> None:
    service, secrets = locked
    service.http.put("/models/zoo").raise_for_status()
    named = [{"label": "z1", "name": "Zebra"}]
    service.http.put("/models/zoo/labels", json={"labels": named}).raise_for_status()
    texts = [{"text": "Zebra, or Zorro?"}, {"text": {"title": "Zorro", "body": "and Zebra"}}]
    body = {"instances": texts, "remember": True}
    service.http.post("/models/zoo/classify", json=body).raise_for_status()
    page = open_page("ask", "zoo", url=service.url)
    give(page, secrets["labeller"])
    expect(page.locator(".instance")).to_have_text(re.compile(r"^(Zebra, or Zorro\?|title: Zorro\s+body: and Zebra)$"))
    expect(page.get_by_text("2 left.")).to_be_visible()
    expect(page.locator(".rank", has_text="Zebra")).to_contain_text("z1")
    page.get_by_label("Right labels").fill("z1")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("1 left.")).to_be_visible()
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("Zebra")
    with page.expect_request("**/events?*label=z1"):
        page.get_by_label("Label", exact=True).fill("zebra")
    expect(page.get_by_label("Source")).to_be_visible()
    page.close()
    service.http.delete("/models/zoo").raise_for_status()


def test_a_labeller_tries_corrects_and_undoes_without_a_dead_end(open_page, locked):
    """A key with the scopes classify and learn."""
    service, secrets = locked
    page = open_page("try", url=service.url)
    give(page, secrets["labeller"])
    page.get_by_role("textbox", name="Text").fill("wheat zeppelin")
    page.get_by_role("button", name="grain is right").click()
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    page.get_by_role("link", name="Correct it under Events").click()
    page.get_by_role("button", name="Correct wheat zeppelin").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Try it")
    page.get_by_role("button", name="Remove grain").click()
    page.get_by_label("Right labels").fill("airships")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “airships”, not “grain”.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Forgotten: “airships”, not “grain”.")).to_be_visible(timeout=120_000)
    page.get_by_role("link", name="Events", exact=True).click()
    page.get_by_role("button", name="Undo wheat zeppelin").click()
    page.get_by_role("dialog").get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("Forgotten.", exact=True).first).to_be_visible(timeout=120_000)
    expect(page.locator("tbody tr", has_text="zeppelin")).to_have_count(0)
    for view in page.locator(".views a").filter(visible=True).all():
        view.click()
        expect(page.locator("#view .card:visible").first).to_be_visible()
        expect(page.locator(".problem:visible")).to_have_count(0)
