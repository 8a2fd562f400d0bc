"""The form of a job and the measures of jobs and versions, with words for everything."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from abound import Client
from benchmarks.serving import Serving
from tests.page.conftest import WIDE, Open, click_twice, http, until_applied
from tests.page.test_accessible import fits

TITLES = """async () => {
    const { formOf } = await import(document.querySelector("script[type=module]").src.replace("app.js", "form.js"));
    const { methods } = await (await fetch("methods")).json();
    const titles = (group) => [...group.children].map((one) => {
        const title = one.querySelector(":scope > label, :scope > legend, :scope > * > label");
        const fields = one.matches("fieldset") ? titles(one.querySelector(".fields")) : null;
        return [title.firstChild.textContent, title.querySelector("code")?.textContent ?? null, fields];
    });
    return methods.map(({ name, params }) => [name, titles(formOf(params).element)]);
}"""


def without_words(fields: list[Any]) -> list[str]:
    """The names of fields that have no title, or share it with another one."""
    found = [name or title for title, name, inside in fields if inside is None and name is None]
    titles = [title for title, _, _ in fields]
    found += [title for title in set(titles) if titles.count(title) > 1]
    return found + [name for _, _, inside in fields for name in without_words(inside or [])]


def test_every_parameter_of_every_method_has_a_title_of_its_own(open_page: Open) -> None:
    page = open_page("versions")
    methods = page.evaluate(TITLES)
    assert len(methods) > 10
    assert {name: without_words(fields) for name, fields in methods if without_words(fields)} == {}


@pytest.mark.long
def test_a_rebuild_begins_with_a_yes_and_says_what_its_fields_mean(open_page: Open, serving: Serving) -> None:
    instance = {"text": "zebra crossing", "labels": ["forgettable"], "source": "to be forgotten"}
    http.post(f"{serving.url}/learn", json=instance).raise_for_status()
    page = open_page("versions", **WIDE)
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
    expect(dialog).to_contain_text("1 event would be forgotten.", timeout=120_000)
    fits(page, 1280)
    expect(dialog).to_contain_text("Nothing brings them back. reason=a test source=to be forgotten since=Feb 3, 2020")
    dialog.get_by_role("button", name="Leave it").click()
    expect(dialog).to_have_count(0)
    form.get_by_role("button", name="Start").click()
    dialog.get_by_role("button", name="Start it").click(timeout=120_000)
    expect(form.get_by_text("Submitted: forget.")).to_be_visible()
    assert [one["params"].get("dry_run") for one in asked] == [True, True, None]
    newest, *_ = http.get(f"{serving.url}/jobs").json()["jobs"]
    with Client(serving.url) as client:
        client.wait(newest["id"])  # the next test learns from history
    job = page.locator(".job").first
    expect(job).to_contain_text("source=to be forgotten")
    expect(job.locator(".tag")).to_have_text("succeeded", timeout=120_000)


def test_a_job_from_a_form_makes_a_version_that_serves_and_goes(open_page: Open, serving: Serving) -> None:
    page = open_page("versions")
    form = page.get_by_role("region", name="Start a job")
    expect(form.get_by_label("Method", exact=True)).to_have_value("")  # nothing was measured to be better
    form.get_by_label("Method", exact=True).select_option("ind")
    form.get_by_text("Parameters", exact=True).click()
    form.get_by_label("seed").fill("7")
    form.get_by_role("button", name="Start").click()
    job = page.locator(".job").first
    expect(job).to_contain_text("seed=7")
    expect(job.locator(".tag")).to_have_text("succeeded", timeout=120_000)
    expect(job).to_contain_text("R@1")
    version, *_ = http.get(f"{serving.url}/models/default/versions").json()["versions"]
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
    expect(now.get_by_text(f"ind {version['id'][:8]} serves.")).to_be_visible(timeout=120_000)
    expect(row.get_by_text("serving")).to_be_visible()
    expect(now).to_contain_text("It answers alone, and does not change.")
    baseline = rows.filter(has_text="live index")
    shown = float(baseline.locator("td").nth(2).text_content().removesuffix(" %"))
    assert shown == pytest.approx(100 * version["metrics"]["live R@1"], abs=0.06)
    address = f"{serving.url}/models/default"
    assert http.get(address).json()["version"] == version["id"]
    until_applied(address)

    typed.fill("wheat harvest in")
    expect(ranked).to_contain_text(f"By version {version['id']}")
    teach = other.get_by_role("region", name="Teach it")
    expect(teach).to_contain_text(f"Version {version['id'][:8]} answers, and learning changes only the live index.")
    other.get_by_text("Options", exact=True).click()
    other.get_by_label("Ranked by").select_option("live")
    expect(teach).to_contain_text("Learned at once by all replicas")
    other.get_by_label("Ranked by").select_option("")
    typed.fill("wheat harvest in kansas")
    expect(other.locator(".rank .name").first).to_have_text("grain")
    expect(ranked.get_by_role("alert")).to_have_count(0)
    assert refused == []

    now.get_by_role("button", name="Roll back").or_(
        now.get_by_role("button", name="Serve the live index")
    ).first.click()
    page.get_by_role("dialog").locator("button.primary").click()
    expect(now.get_by_text("the live index serves.")).to_be_visible(timeout=120_000)
    assert http.get(address).json()["version"] == "live"
    until_applied(address)
    typed.fill("wheat harvest in texas")
    expect(ranked).to_contain_text("By the live index")
    expect(other.locator(".bars")).to_be_visible()


def test_a_version_is_entered_as_a_challenger_and_withdrawn(open_page: Open, serving: Serving) -> None:
    with Client(serving.url) as client:
        [*_, job] = client.follow(client.submit({"method": "frequency"})["id"])
    page = open_page("versions")
    rows = page.get_by_role("region", name="Versions", exact=True).locator("tbody tr")
    row = rows.filter(has_text=job["version"][:8])
    asked = []
    page.on("request", lambda request: "/challengers" in request.url and asked.append(request.method))
    click_twice(row.get_by_role("button", name=re.compile("^Challenge with ")))
    expect(page.get_by_text("is a challenger: it is scored from the next event on.")).to_be_visible()
    expect(row.get_by_role("button", name=re.compile("^Withdraw "))).to_be_visible()
    row.get_by_role("button", name=re.compile("^Withdraw ")).click()
    expect(page.get_by_text("is no challenger any more.")).to_be_visible()
    assert [one for one in asked if one != "GET"] == ["POST", "DELETE"]
