"""Files are taught, classified and kept as data sets on the page."""

import gzip
from pathlib import Path

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Create, Open, http
from tests.page.test_accessible import fits

TABLE = """id;subject;team;plan
1;broken & bent screen;phones|repairs;7
2;"says ""no"";
then off";phones;00100
3;no team;;1
"""


def test_a_table_is_taught_and_classified(open_page: Open, create_model: Create, tmp_path: Path) -> None:
    address = create_model("tickets")
    file = tmp_path / "tickets.csv.gz"
    file.write_bytes(gzip.compress(TABLE.replace("screen", "Gerät").encode("cp1252")))
    page = open_page("files", "tickets", **NARROW)
    page.get_by_label("File", exact=True).set_input_files(file)
    expect(page.get_by_text("The file is not UTF-8: choose another encoding.")).to_be_visible()
    page.get_by_label("Encoding").select_option("cp1252")
    page.get_by_label("team").select_option("label")
    page.get_by_label("Separator of labels").fill("|")
    page.get_by_label("Separator of labels").press("Tab")
    expect(page.get_by_text("3 records, 2 labels: phones, repairs.")).to_be_visible()
    fits(page, 390)
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Start").click()
    sent = (learning.value.post_data or "").splitlines()
    assert '"text":"broken & bent Gerät","features":{"plan":7},"labels":["phones","repairs"]' in sent[0]
    assert '"text":"says \\"no\\";\\nthen off","features":{"plan":"00100"},"labels":["phones"]' in sent[1]
    expect(page.get_by_text("2 events learned.").first).to_be_visible()
    expect(page.get_by_text("1 record was refused")).to_be_visible()
    expect(page.get_by_role("region", name="Table: Refused records")).to_contain_text("needs a label")
    with page.expect_response("**/learn"):
        page.get_by_role("button", name="Start").click()  # the same lines have the same keys
    assert http.get(f"{address}/stats").json()["learned"] == 2
    fits(page, 390)
    page.get_by_label("Do this").select_option("evaluate")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("R@1 100.0 %, R@5 100.0 % of 2 records with a label.").first).to_be_visible()
    page.get_by_label("Do this").select_option("classify")
    page.get_by_role("button", name="Start").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the answers").click()
    assert saved.value.suggested_filename == "tickets-labels.csv"
    head, first, *_ = Path(saved.value.path()).read_text().splitlines()
    assert head.startswith('"id","subject","team","plan","label 1","name 1"')
    assert first.startswith('"1","broken & bent Gerät","phones|repairs","7","')


def test_texts_of_a_file_are_reviewed_and_an_answer_is_taken_back(open_page, create_model, tmp_path):
    address, file = create_model("queue"), tmp_path / "asked.csv"
    file.write_text("text\nwheat for sale\n")
    page = open_page("files", "queue")
    page.get_by_label("Do this").select_option("review")
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Start").click()
    page.get_by_role("link", name="Review them").click()
    for label in ("grain", "corn"):
        expect(page.locator(".instance")).to_have_text("wheat for sale", timeout=120_000)
        page.get_by_label("Right labels").fill(label)
        page.keyboard.press("Control+Enter")
        expect(page.get_by_text("Nothing to review.")).to_be_visible()
        if label == "grain":
            page.get_by_role("button", name="Undo").click()
    assert [one["labels"] for one in http.get(f"{address}/events").json()["events"]] == [["corn"]]


def test_a_data_set_is_kept_shown_and_deleted(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("files", expected=("status of 422",))
    page.get_by_label("Do this").select_option("dataset")
    broken, good = tmp_path / "broken.svm", tmp_path / "tickets.csv"
    broken.write_text("no numbers here\n")
    page.get_by_label("File", exact=True).set_input_files(broken)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert")).to_be_visible()
    good.write_text(TABLE)
    page.get_by_label("File", exact=True).set_input_files(good)
    page.get_by_label("subject").select_option("text")
    page.get_by_label("team").select_option("label")
    page.get_by_label("plan").select_option("category")
    page.get_by_label("Separator of labels").fill("|")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("“tickets” is there.").first).to_be_visible(timeout=120_000)
    (row, *_) = http.get(f"{serving.url}/datasets/tickets/rows").raise_for_status().json()["rows"]
    assert row == {"text": "broken & bent screen", "features": {"plan": "7"}, "labels": ["phones", "repairs"]}
    page.get_by_role("link", name="See its rows").click()
    page.get_by_role("button", name="Show rows of tickets").click()
    expect(page.get_by_role("region", name="Rows of tickets")).to_contain_text("broken & bent screen")
    page.get_by_role("button", name="Delete tickets").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No data sets yet.")).to_be_visible()


def test_a_broken_file_teaches_nothing_and_says_where_it_breaks(open_page, create_model, tmp_path):
    address, file = create_model("broken"), tmp_path / "broken.csv"
    page = open_page("files", "broken")
    for text, said in (
        ("text,label\nlate,delivery\nlate, again,delivery\n", "Record 2 has 3 cells for 2 columns"),
        ('{"text": "late", "labels": ["delivery"]}\n42\n', "Line 2 is not a JSON object."),
        ('{"text": "late", "labels": ["delivery"]}\n{"text": \n', "Line 2 is not JSON"),
        ("", "The browser finds no records in it."),
    ):
        file.write_text(text)
        with page.expect_file_chooser() as chooser:
            page.get_by_label("File", exact=True).click()
        chooser.value.set_files(file)
        expect(page.get_by_text(said)).to_be_visible()
        expect(page.get_by_text("What the columns are")).to_have_count(0)
        page.get_by_role("button", name="Start").click()
    assert http.get(f"{address}/stats").json()["learned"] == 0
