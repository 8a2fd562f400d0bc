"""Data sets are uploaded, checked and deleted on the page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import Open, http
from tests.page.newsroom import news


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
    while not held:
        page.wait_for_timeout(20)
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
    file.write_bytes(gzip.compress(line * 200_000, compresslevel=1))
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_function(
        """() => {
            const shown = document.querySelector("progress[aria-label=Checked]");
            const said = /^All sent\\. [1-9]\\d? % of the file is read and checked\\.$/;
            return shown && 0 < shown.value && shown.value < 1 && said.test(shown.nextElementSibling.textContent);
        }"""
    )
    expect(page.get_by_text("“large” is there.")).to_be_visible(timeout=120_000)
    found = http.get(f"{serving.url}/datasets").json()
    assert (found["datasets"][0]["instances"], found["checking"]) == (200_000, {})
    http.delete(f"{serving.url}/datasets/large").raise_for_status()


def test_a_data_set_is_uploaded_and_deleted(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets", expected=("status of 422",))
    broken = tmp_path / "broken.svm"
    broken.write_text("no numbers here\n")
    page.get_by_label("File").set_input_files(broken)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("broken")
    file = tmp_path / "news.jsonl.gz"
    file.write_bytes(gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in news(200))))
    page.get_by_label("File").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("news")
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
