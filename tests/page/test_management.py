"""Models, snapshots, keys, the sample and questions: what is managed on the page."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import NARROW, WIDE, Open, click_twice, give, http
from tests.page.test_accessible import fits
from tests.support.job_worker import until


def test_the_first_start_is_one_card_and_a_sample_one_click_away(fresh: str, open_page: Open) -> None:
    page = open_page("overview", "fresh", **WIDE)
    card = page.get_by_role("region", name="Nothing learned yet")
    expect(card).to_contain_text("abound learn FILE")
    expect(page.locator(".card:visible")).to_have_count(1)
    fits(page, 1280)
    card.get_by_role("radio", name="Accurate").check()
    expect(card.get_by_text("The rule is sls.")).to_be_visible()
    assert http.get(fresh).json()["config"]["update"] == "sls"
    card.get_by_role("button", name="Load a sample").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Try it")
    expect(page.locator(".rank .name").first).to_have_text("payment/twice")
    sample = fresh.replace("fresh", "sample")
    assert http.get(f"{sample}/stats").json()["learned"] == 132
    fits(page, 1280)
    page.close()
    http.delete(sample).raise_for_status()


def test_a_model_is_created_configured_exported_imported_and_deleted(open_page, serving, tmp_path):
    page = open_page("models", **NARROW)
    create = page.get_by_role("region", name="Create a model")
    create.get_by_text("Name, rule and settings").click()
    create.get_by_label("Name").fill("made-here")
    create.get_by_role("radio", name="Accurate").check()
    create.get_by_label("ngrams").fill("1, 2")
    create.get_by_text("More settings").click()
    create.get_by_label("max_classes").fill("50")
    fits(page, 390)
    create.get_by_role("button", name="Create").click()
    expect(page).to_have_url(re.compile("#try/made-here$"))
    address = f"{serving.url}/models/made-here"
    config = http.get(address).json()["config"]
    made = (config["update"], config["calibrate"], config["max_classes"], config["analyzer"]["ngrams"])
    assert made == ("sls", True, 50, [1, 2])
    instance = {"text": "wheat prices", "labels": ["grain"]}
    http.post(f"{address}/learn", json=instance).raise_for_status()

    page.get_by_role("link", name="Models").click()
    settings = page.get_by_role("region", name="Settings of made-here")
    expect(settings.get_by_label("The update rule")).to_have_value("sls")
    expect(settings.get_by_label("The update rule")).to_be_disabled()
    settings.get_by_text("More settings").click()
    settings.get_by_label("Learn to convert scores").uncheck()
    settings.get_by_role("button", name="Save").click()
    expect(settings.get_by_role("alert")).to_have_count(0)
    until(lambda: http.get(address).json()["config"]["calibrate"] is False)

    snapshots = page.get_by_role("region", name="Snapshots of made-here", exact=True)
    expect(snapshots).to_contain_text("No snapshot yet.")
    snapshots.get_by_role("button", name="Make a snapshot").click()
    expect(snapshots.locator("tbody tr")).to_have_count(1, timeout=120_000)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export made-here").click()
    assert saved.value.suggested_filename == "made-here.abound"
    file = tmp_path / "made-here.abound"
    saved.value.save_as(file)
    fits(page, 390)
    page.get_by_role("button", name="Delete made-here").click()
    expect(page.get_by_role("dialog")).to_contain_text("The 1 event that it learned")
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("button", name="Delete made-here")).to_have_count(0)

    back = page.get_by_role("region", name="Import a model")
    back.get_by_label("File").set_input_files(file)
    back.get_by_label("Name").fill("made-again")
    back.get_by_role("button", name="Import").click()
    expect(page).to_have_url(re.compile("#overview/made-again$"))
    again = f"{serving.url}/models/made-again"
    assert http.get(again).json()["learned"] == 1
    page.close()  # it asks for the model
    http.delete(again).raise_for_status()


@pytest.mark.long
def test_a_snapshot_is_restored(fresh: str, open_page: Open) -> None:
    http.post(f"{fresh}/learn", json={"text": "wheat", "labels": ["grain"]}).raise_for_status()
    page = open_page("models", "fresh")
    snapshots = page.get_by_role("region", name="Snapshots of fresh", exact=True)
    snapshots.get_by_role("button", name="Make a snapshot").click()
    expect(snapshots.locator("tbody tr")).to_have_count(1, timeout=120_000)
    http.post(f"{fresh}/learn", json={"text": "oil", "labels": ["crude"]}).raise_for_status()
    snapshots.get_by_role("button", name="Restore").click()
    expect(page.get_by_role("dialog", name="Restore fresh?")).to_contain_text("Later events are no longer learned")
    page.get_by_role("dialog").get_by_role("button", name="Restore it").click()
    expect(page).to_have_url(re.compile("#versions/fresh$"))
    expect(page.locator(".job").first.locator(".tag")).to_have_text("succeeded", timeout=120_000)
    page.get_by_role("link", name="Labels").click()
    expect(page.locator(".label .name")).to_have_text(["grain"], timeout=120_000)
    assert http.get(f"{fresh}/stats").json()["learned"] == 1
    page.goto(re.sub("#.*", "#models/fresh", page.url))
    snapshots.get_by_role("button", name="Undo the last replacement").click()
    page.get_by_role("dialog", name="Undo the last replacement of fresh?").get_by_role("button", name="Undo it").click()
    expect(page).to_have_url(re.compile("#versions/fresh$"))
    undone = page.get_by_role("article", name="Job undo")
    expect(undone.locator(".tag")).to_have_text("succeeded", timeout=120_000)
    assert http.get(f"{fresh}/stats").json()["learned"] == 2


def test_the_least_certain_instances_are_labelled_by_keyboard(fresh: str, open_page: Open) -> None:
    page = open_page("ask", "fresh", **WIDE)
    expect(page.get_by_text("Nothing to review.")).to_be_visible()
    learned = [{"text": text, "labels": [label]} for text, label in (("wheat", "grain"), ("oil", "crude"))]
    http.post(f"{fresh}/learn", json={"instances": learned}).raise_for_status()
    instances = [{"text": text} for text in ("wheat", "oil", "oil wheat", "oil oil wheat")]
    http.post(f"{fresh}/classify", json={"instances": instances, "remember": True}).raise_for_status()
    page.reload()
    shown = page.locator(".instance")
    expect(shown).to_have_text(re.compile("^(oil wheat|oil oil wheat)$"))
    fits(page, 1280)
    page.get_by_role("main").focus()
    first = page.locator(".rank .name").first.text_content()
    with page.expect_request("**/learn") as learning:
        page.keyboard.press("1")
        expect(page.locator(".rank").first).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("Enter")
    assert learning.value.post_data_json["labels"] == [first]
    expect(page.get_by_text(f"Learned “{first}”.")).to_be_visible()
    expect(shown).to_have_text(re.compile("^(oil wheat|oil oil wheat)$"))
    page.keyboard.press("S")
    expect(shown).to_have_text(re.compile("^(wheat|oil)$"))
    once = shown.text_content()
    page.get_by_label("Right labels").fill("cereal, grain")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Learned “cereal”, “grain”.")).to_be_visible()
    expect(shown).not_to_have_text(once)
    page.keyboard.type("substance")  # the field keeps the focus: S does not skip
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Learned “substance”.")).to_be_visible()
    expect(page.get_by_text("Nothing else to ask.")).to_be_visible()
    assert http.get(f"{fresh}/stats").json()["learned"] == 5


def test_an_admin_makes_replaces_and_revokes_keys_and_sees_who_did_what(open_page, locked):
    service, secrets = locked
    page = open_page("keys", url=service.url, **NARROW)
    give(page, secrets["admin"])
    create = page.get_by_role("region", name="Create a key")
    create.get_by_label("Description").fill("shop")
    create.get_by_label("learn: teach").check()
    create.get_by_label("Models").fill("default")
    create.get_by_label("Days").fill("30")
    click_twice(create.get_by_role("button", name="Create"))
    secret = page.get_by_label("The new key").input_value()
    assert secret.startswith("abk_")
    fits(page, 390)
    rows = page.get_by_role("region", name="Keys", exact=True).locator("tbody tr", has_text="shop")
    row = rows.last
    replace = row.get_by_role("button", name="Replace shop")
    expect(replace).to_be_visible()
    expect(row).to_contain_text("classify, learn")
    expect(rows).to_have_count(1)
    replace.click()
    page.get_by_role("dialog").get_by_role("button", name="Replace it").click()
    expect(page.get_by_label("The new key")).not_to_have_value(secret)
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Hide it").click()
    expect(page.get_by_label("The new key")).to_have_count(0)
    row.get_by_role("button", name="Revoke shop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
    expect(row.locator(".tag")).to_have_text("revoked")
    page.reload()
    acts = page.get_by_role("region", name="Audit log").locator("tbody tr td:nth-child(2)")
    expect(acts.first).to_have_text("key.revoke")
    expect(acts.nth(1)).to_have_text("key.rotate")
    fits(page, 390)
