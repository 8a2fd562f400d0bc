"""The form of a job and the measures of jobs and versions, with words for everything."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from abound import Client
from benchmarks.serving import Serving
from tests.page.conftest import Open

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


def test_auto_comes_first_and_the_data_choose_the_method(open_page: Open, serving: Serving) -> None:
    page = open_page("versions")
    form = page.get_by_role("region", name="Start a job")
    expect(form.get_by_label("Method", exact=True)).to_have_value("one_vs_rest")  # few labels, one to an event
    form.get_by_text("Parameters", exact=True).click()
    first = form.locator("details .fields :is(input, select, textarea)").first
    expect(first).to_have_attribute("name", "auto")


def test_measures_of_jobs_and_versions_are_explained(open_page: Open, serving: Serving) -> None:
    with Client(serving.url) as client:
        versions = [client.wait(client.submit({"method": name}))["version"] for name in ("frequency", "ind")]
    page = open_page("versions")
    job = page.locator(".job").filter(has_text="ind").first
    for name, said in (("P@3", "among the first three"), ("nDCG@5", "the best order")):
        expect(job.get_by_role("button", name=name)).to_have_accessible_description(re.compile(said))
    for version in versions:
        page.get_by_role("checkbox", name=re.compile(f"^Compare .* {version[:8]}$")).check()
    beside = page.get_by_role("region", name="Table: Versions side by side")
    expect(beside.get_by_role("button", name="nDCG@5")).to_have_accessible_description(re.compile("the best order"))


def test_the_difference_of_a_contender_is_explained(open_page: Open) -> None:
    page = open_page("versions")
    names = {"version": "1" * 32, "decision": "undecided", "n": 9, "difference": None}
    window = {"n": 9, "R@1": 0.5, "R@5": 0.5, "MRR": 0.5}
    versions = [names | {"window": window}, names | {"version": "live", "decision": "served", "window": window}]
    gate = {"needed": 100, "min_events": 1000, "alpha": 0.05}
    contest = {"versions": versions, "gate": gate, "decisions": [], "trouble": {}}
    contenders = {"contenders": [{"version": "1" * 32}], "contest": contest}
    page.route("**/models/default/contenders", lambda route: route.fulfill(json=contenders))
    heading = page.get_by_role("columnheader").get_by_role("button", name="better by (MRR)")
    expect(heading).to_have_accessible_description(re.compile("1 / rank of the best true label"))
