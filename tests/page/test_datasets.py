"""Data sets are uploaded, checked, shown and deleted on the page."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Open, http
from tests.page.newsroom import news
from tests.page.test_accessible import fits


def test_a_data_set_is_uploaded_checked_shown_and_deleted(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets", expected=("status of 422",), **NARROW)
    file, upload = page.get_by_label("File"), page.get_by_role("button", name="Upload")
    broken, other, good = (tmp_path / name for name in ("broken.svm", "table.pdf", "news.jsonl.gz"))
    broken.write_text("no numbers here\n")
    file.set_input_files(broken)
    upload.click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("broken")
    other.write_text("a")
    file.set_input_files(other)
    upload.click()
    expect(page.get_by_text("This kind of file cannot be read: table.pdf")).to_be_visible()

    first = next(news(1))
    good.write_bytes(gzip.compress((json.dumps(first) + "\n").encode() * 200_000, compresslevel=1))
    file.set_input_files(good)
    expect(page.get_by_label("Name")).to_have_value("news")
    upload.click()
    page.wait_for_function(
        """() => {
            const shown = document.querySelector("progress[aria-label=Checked]");
            const said = /^All sent\\. [1-9]\\d? % of the file is read and checked\\.$/;
            return shown && 0 < shown.value && shown.value < 1 && said.test(shown.nextElementSibling.textContent);
        }"""
    )
    page.get_by_role("link", name="Overview").click()  # the upload goes on while another view is shown
    page.get_by_role("link", name="Data sets").click()
    expect(page.get_by_text("“news” is there.")).to_be_visible(timeout=120_000)
    row = page.get_by_role("region", name="Data sets").locator("tbody tr")
    expect(row).to_contain_text("200,000")
    row.get_by_role("button", name="Show rows of news").click()
    rows = page.get_by_role("region", name="Rows of news").locator("tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text(first["text"])
    fits(page, 390)
    page.get_by_role("button", name="Delete news").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No data sets yet.")).to_be_visible()


def test_columns_of_a_table_are_named(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets")
    table = tmp_path / "tickets.csv"
    table.write_text("subject;team;plan\nbroken & bent screen;phones|repairs;7\n")
    page.get_by_label("File").set_input_files(table)
    page.get_by_text("Columns and reading", exact=True).click()
    page.get_by_label("Text", exact=True).fill("subject")
    page.get_by_label("Label", exact=True).fill("team")
    page.get_by_label("Label separator").fill("|")
    page.get_by_label("Categories").fill("plan")
    page.get_by_label("Encoding").select_option("cp1252")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("“tickets” is there.")).to_be_visible(timeout=120_000)
    address = f"{serving.url}/datasets/tickets"
    (row,) = http.get(f"{address}/rows").raise_for_status().json()["rows"]
    http.delete(address).raise_for_status()
    assert row == {"text": "broken & bent screen", "features": {"plan": "7"}, "labels": ["phones", "repairs"]}
