"""Models, keys, sample, questions and rows: what is managed on the page, at both widths and in both themes."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import Create, Open, click_twice, give, http, show_one_replica, until_drawn_again
from tests.page.newsroom import news
from tests.page.test_accessible import barriers
from tests.support.served import Served

WIDE, NARROW = ("light", 1280), ("dark", 390)


def sizes(quick: tuple[str, int]) -> pytest.MarkDecorator:
    """Both widths of the window in both themes; those that are not ``quick`` are ``long``."""
    windows = product(("light", "dark"), (1280, 390))
    some = [window if window == quick else pytest.param(*window, marks=pytest.mark.long) for window in windows]
    return pytest.mark.parametrize(("scheme", "width"), some)


def fits(page: Any, width: int) -> None:
    """Nothing is wider than the window, and axe finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") == width
    barriers(page)


@sizes(WIDE)
def test_the_first_start_is_one_card_and_a_sample_one_click_away(
    fresh: str, open_page: Open, scheme: str, width: int
) -> None:
    page = open_page("overview", "fresh", color_scheme=scheme, viewport={"width": width, "height": 844})
    card = page.get_by_role("region", name="Nothing learned yet")
    expect(card).to_contain_text("abound learn FILE")
    expect(page.locator(".card:visible")).to_have_count(1)
    fits(page, width)
    card.get_by_role("button", name="Load a sample").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Try it")
    expect(page.locator(".rank .name").first).to_have_text("payment/twice")
    assert http.get(f"{fresh}/stats").json()["learned"] == 132
    fits(page, width)


@sizes(NARROW)
def test_a_model_is_created_configured_exported_imported_and_deleted(
    open_page: Open, serving: Serving, tmp_path: Path, scheme: str, width: int
) -> None:
    page = open_page("models", color_scheme=scheme, viewport={"width": width, "height": 844}, expected=("409",))
    create = page.get_by_role("region", name="Create a model")
    create.get_by_label("Name").fill("made-here")
    create.get_by_label("The update rule").select_option("sls")
    create.get_by_label("Learn to convert scores").check()
    create.get_by_label("ngrams").fill("1, 2")
    create.get_by_text("More settings").click()
    create.get_by_label("max_classes").fill("50")
    fits(page, width)
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
    settings.get_by_label("The update rule").select_option("fsu")
    settings.get_by_role("button", name="Save").click()
    expect(settings.get_by_role("alert")).to_contain_text("update")
    settings.get_by_label("The update rule").select_option("sls")
    settings.get_by_label("Learn to convert scores").uncheck()
    settings.get_by_role("button", name="Save").click()
    expect(settings.get_by_role("alert")).to_have_count(0)
    assert http.get(address).json()["config"]["calibrate"] is False

    snapshots = page.get_by_role("region", name="Snapshots of made-here", exact=True)
    expect(snapshots).to_contain_text("No snapshot yet.")
    snapshots.get_by_role("button", name="Make a snapshot").click()
    expect(snapshots.locator("tbody tr")).to_have_count(1, timeout=120_000)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export made-here").click()
    assert saved.value.suggested_filename == "made-here.abound"
    file = tmp_path / "made-here.abound"
    saved.value.save_as(file)
    fits(page, width)
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


def test_an_optional_setting_is_unset(create_model: Create, open_page: Open) -> None:
    analyzer = {"stop_words": "english", "embed": "wordllama"}
    address = create_model("bounded", update="sls", max_classes=50, max_features=1000, analyzer=analyzer)
    page = open_page("models", "bounded")
    settings = page.get_by_role("region", name="Settings of bounded")
    settings.get_by_label("stop_words").select_option("")
    settings.get_by_label("embed").fill("")
    settings.get_by_text("More settings").click()
    settings.get_by_label("max_classes").fill("")
    with page.expect_response(lambda answer: answer.request.method == "PUT") as saved:
        settings.get_by_role("button", name="Save").click()
    unset = {"stop_words": None, "embed": None}
    assert saved.value.request.post_data_json == {"analyzer": unset, "max_classes": None}
    config = http.get(address).json()["config"]
    assert (config["max_classes"], config["max_features"]) == (None, 1000)
    assert config["analyzer"] == config["analyzer"] | unset


def test_models_are_deleted_one_after_the_other(serving: Serving, create_model: Create, open_page: Open) -> None:
    for name in ("first", "second", "third"):
        create_model(name)
    page = open_page("models", "first")

    def without_default(route: Any) -> None:
        answer = route.fetch()
        models = [one for one in answer.json()["models"] if one["name"] != "default"]
        route.fulfill(response=answer, json=answer.json() | {"models": models})

    page.route(f"{serving.url}/models", without_default)
    for name, following in (("first", "second"), ("second", "third")):
        page.get_by_role("button", name=f"Delete {name}").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
        expect(page.get_by_role("region", name=f"Settings of {following}")).to_be_visible()
    page.unroute_all(behavior="wait")


def test_a_model_is_not_asked_for_while_it_is_deleted(create_model: Create, open_page: Open) -> None:
    address = create_model("leaving")
    page = open_page("labels", "leaving")
    page.clock.install()
    page.get_by_role("link", name="Models").click()
    held: list[Any] = []
    page.route(address, lambda route: held.append(route))
    page.get_by_role("button", name="Delete leaving").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    while not held:
        page.wait_for_timeout(20)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(address)))
    page.clock.fast_forward(20_000)
    page.evaluate("fetch('livez').then((answer) => answer.text())")
    assert "/snapshots" not in asked
    held[0].continue_()
    expect(page.get_by_role("region", name="Settings of default")).to_be_visible()


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


def test_a_name_that_is_taken_is_not_configured_by_mistake(open_page: Open, serving: Serving) -> None:
    page = open_page("models")
    create = page.get_by_role("region", name="Create a model")
    create.get_by_label("Name").fill("default")
    create.get_by_label("Learn to convert scores").check()
    create.get_by_role("button", name="Create").click()
    expect(create.get_by_role("alert")).to_contain_text("There is a model “default” already.")
    assert http.get(f"{serving.url}/models/default").json()["config"]["calibrate"] is False


@sizes(WIDE)
def test_the_least_certain_instances_are_labelled_by_keyboard(
    fresh: str, open_page: Open, scheme: str, width: int
) -> None:
    page = open_page("ask", "fresh", color_scheme=scheme, viewport={"width": width, "height": 844})
    expect(page.get_by_text("Nothing to ask.")).to_be_visible()
    learned = [{"text": text, "labels": [label]} for text, label in (("wheat", "grain"), ("oil", "crude"))]
    http.post(f"{fresh}/learn", json={"instances": learned}).raise_for_status()
    instances = [{"text": text} for text in ("wheat", "oil", "oil wheat", "oil oil wheat")]
    http.post(f"{fresh}/classify", json={"instances": instances, "remember": True}).raise_for_status()
    page.reload()
    shown = page.locator(".instance")
    expect(shown).to_have_text(re.compile("^(oil wheat|wheat oil)$"))
    fits(page, width)
    page.get_by_role("main").focus()
    first = page.locator(".rank .name").first.text_content()
    with page.expect_request("**/learn") as learning:
        page.keyboard.press("1")
        expect(page.locator(".rank").first).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("Enter")
    assert learning.value.post_data_json["labels"] == [first]
    expect(page.get_by_text(f"Learned “{first}”.")).to_be_visible()
    expect(shown).to_have_text(re.compile("^(oil wheat|wheat oil)$"))
    page.keyboard.press("S")
    expect(shown).to_have_text(re.compile("^(wheat|oil)$"))
    once = shown.text_content()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_label("Other labels").fill("cereal, grain")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Learned “cereal”, “grain”.")).to_be_visible()
    expect(shown).not_to_have_text(once)
    page.keyboard.type("substance")  # the field keeps the focus: S does not skip
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("Learned “substance”.")).to_be_visible()
    expect(page.get_by_text("Nothing else to ask.")).to_be_visible()
    assert http.get(f"{fresh}/stats").json()["learned"] == 5
    page.wait_for_timeout(300)
    assert not any(url.endswith("prefix=") for url in asked)  # a field that was emptied needs no suggestions


def test_an_instance_that_is_being_learned_is_not_skipped(fresh: str, open_page: Open) -> None:
    http.post(f"{fresh}/learn", json={"text": "a b c", "labels": ["letter"]}).raise_for_status()
    instances = [{"text": text} for text in ("a", "b", "c")]
    http.post(f"{fresh}/classify", json={"instances": instances, "remember": True}).raise_for_status()
    page = open_page("ask", "fresh")
    shown = page.locator(".instance")
    expect(shown).to_be_visible()
    held: list[Any] = []
    page.route("**/learn", lambda route: held.append(route))
    page.get_by_role("main").focus()
    first = shown.text_content()
    for key in ("1", "Enter", "s"):
        page.keyboard.press(key)
    while not held:
        page.wait_for_timeout(50)
    expect(shown).to_have_text(first)
    held[0].continue_()
    expect(page.get_by_text("Learned “letter”.")).to_be_visible()
    expect(shown).not_to_have_text(first)
    second = shown.text_content()
    page.keyboard.press("s")
    expect(shown).not_to_have_text(second)
    expect(shown).not_to_have_text(first)


def test_skipped_instances_come_again_when_they_are_asked_for_and_learned_ones_never(
    fresh: str, open_page: Open
) -> None:
    http.post(f"{fresh}/learn", json={"text": "wheat", "labels": ["grain"]}).raise_for_status()
    instances = [{"text": f"word{at}"} for at in range(25)]
    http.post(f"{fresh}/classify", json={"instances": instances, "remember": True}).raise_for_status()
    page = open_page("ask", "fresh")
    shown = page.locator(".instance")
    seen = []

    def press(key: str) -> None:
        word = shown.text_content()
        seen.append(word)
        page.keyboard.press(key)
        expect(shown.filter(has_text=re.compile(f"^{word}$"))).to_have_count(0)

    expect(shown).to_be_visible()
    page.get_by_role("main").focus()
    for _ in range(21):
        press("s")
    page.get_by_label("Other labels").fill("grain")
    press("Control+Enter")
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    page.reload()
    expect(shown).to_be_visible()
    page.get_by_role("main").focus()
    for _ in range(3):
        press("s")
    assert sorted(seen) == sorted(one["text"] for one in instances)
    expect(page.get_by_text("Nothing else to ask.")).to_be_visible()
    expect(page.get_by_text("You skipped 24.")).to_be_visible()
    page.get_by_role("button", name="Ask the skipped ones").click()
    expect(shown).to_be_visible()
    again = []
    for _ in range(24):
        again.append(shown.text_content())
        page.get_by_role("button", name="Skip").click()
        expect(shown.filter(has_text=re.compile(f"^{again[-1]}$"))).to_have_count(0)
    expect(page.get_by_text("You skipped 24.")).to_be_visible()
    assert sorted(again) == sorted(set(seen) - {seen[21]})


def test_rows_of_a_data_set_are_shown_and_other_files_refused(
    open_page: Open, serving: Serving, tmp_path: Path
) -> None:
    page = open_page("datasets", viewport={"width": 390, "height": 844})
    body = "".join(json.dumps(one) + "\n" for one in news(30))
    address = f"{serving.url}/datasets/rows"
    http.put(address, params={"filename": "x.jsonl"}, content=body).raise_for_status()
    page.reload()
    page.get_by_role("button", name="Show rows of rows").click()
    rows = page.get_by_role("region", name="Rows of rows").locator("tbody tr")
    expect(rows).to_have_count(10)
    expect(rows.first).to_contain_text(next(news(30))["text"])
    fits(page, 390)
    other = tmp_path / "table.pdf"
    other.write_text("a")
    page.get_by_label("File").set_input_files(other)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("This kind of file cannot be read: table.pdf")).to_be_visible()
    http.delete(address).raise_for_status()


def test_columns_of_a_table_are_named(open_page: Open, serving: Serving, tmp_path: Path) -> None:
    page = open_page("datasets", viewport={"width": 390, "height": 844})
    expect(page.get_by_text("Columns and fields", exact=True)).to_be_hidden()
    table = tmp_path / "tickets.csv"
    table.write_text("subject;team;plan\nbroken & bent screen;phones|repairs;free\n")
    page.get_by_label("File").set_input_files(table)
    page.get_by_label("Name").fill("tickets")
    page.get_by_text("Columns and fields", exact=True).click()
    page.get_by_label("Text", exact=True).fill("subject")
    page.get_by_label("Label", exact=True).fill("team")
    page.get_by_label("Label separator").fill("|")
    fits(page, 390)
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("“tickets” is there.")).to_be_visible(timeout=120_000)
    address = f"{serving.url}/datasets/tickets"
    (row,) = http.get(f"{address}/rows").raise_for_status().json()["rows"]
    http.delete(address).raise_for_status()
    assert row == {"text": "broken & bent screen", "features": {"plan": "free"}, "labels": ["phones", "repairs"]}


def test_words_of_the_field_are_explained(open_page: Open) -> None:
    page = open_page("overview")
    word = page.locator(".tile").get_by_role("button", name="R@1")
    expect(word).to_have_accessible_description(re.compile("ranked first"))
    tip = page.get_by_role("tooltip").filter(has_text="ranked first").first
    expect(tip).to_be_hidden()
    word.focus()
    expect(tip).to_be_visible()
    until_drawn_again(page, "/stats")
    expect(page.locator(".tile").filter(has_text="Requests to /classify")).to_be_visible()  # it comes last
    expect(word).to_be_focused()
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    for name in ("offset", "digest", "lag"):
        expect(page.get_by_role("region", name="Replicas", exact=True).get_by_role("button", name=name)).to_be_visible()


def test_requests_and_their_latency_are_shown(open_page: Open, serving: Serving) -> None:
    page = open_page("datasets")
    show_one_replica(page)  # the counts begin again when a replica comes or goes
    page.get_by_role("link", name="Overview").click()
    tile = page.locator(".tile").filter(has_text="Requests to /classify")
    expect(tile).to_be_visible()
    for _ in range(20):
        http.post(f"{serving.url}/classify", json={"text": "wheat"}).raise_for_status()
    expect(tile.locator(".beside")).to_have_text(re.compile(r"^half within [\d.]+ m?s, 99 % within [\d.]+ m?s$"))
    expect(tile.locator(".figure")).not_to_have_text("0")
    expect(page.get_by_role("contentinfo")).to_contain_text(re.compile(r"Abound \d+\.\d+"))


@sizes(NARROW)
def test_an_admin_makes_replaces_and_revokes_keys_and_sees_who_did_what(
    open_page: Open, locked: tuple[Served, dict[str, str]], scheme: str, width: int
) -> None:
    service, secrets = locked
    page = open_page("keys", url=service.url, color_scheme=scheme, viewport={"width": width, "height": 844})
    give(page, secrets["admin"])
    create = page.get_by_role("region", name="Create a key")
    create.get_by_label("Description").fill("shop")
    create.get_by_label("learn: teach").check()
    create.get_by_label("Models").fill("default")
    create.get_by_label("Days").fill("30")
    create.get_by_role("button", name="Create").click()
    secret = page.get_by_label("The new key").input_value()
    assert secret.startswith("abk_")
    fits(page, width)
    rows = page.get_by_role("region", name="Keys", exact=True).locator("tbody tr", has_text="shop")
    row = rows.last
    replace = row.get_by_role("button", name="Replace shop")
    expect(replace).to_be_visible()
    expect(row).to_contain_text("classify, learn")
    n_before = rows.count()
    replace.click()
    page.get_by_role("dialog").get_by_role("button", name="Replace it").click()
    expect(page.get_by_label("The new key")).not_to_have_value(secret)
    expect(rows).to_have_count(n_before + 1)
    page.get_by_role("button", name="Hide it").click()
    expect(page.get_by_label("The new key")).to_have_count(0)
    row.get_by_role("button", name="Revoke shop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke it").click()
    expect(row.locator(".tag")).to_have_text("revoked")
    page.reload()
    acts = page.get_by_role("region", name="Audit log").locator("tbody tr td:nth-child(2)")
    expect(acts.first).to_have_text("key.revoke")
    expect(acts.nth(1)).to_have_text("key.rotate")
    fits(page, width)


def test_a_double_click_makes_one_key_and_reads_one_page_of_the_audit_log(
    open_page: Open, locked: tuple[Served, dict[str, str]]
) -> None:
    service, secrets = locked
    page = open_page("keys", url=service.url)
    act = {"id": "1-0", "at": 1.7e9, "action": "key.make", "key": "k", "outcome": "done", "details": {}}
    page.route("**/audit?*", lambda route: route.fulfill(json={"acts": [act] * 50}))
    asked = []
    page.on("request", lambda request: asked.append((request.method, request.url.removeprefix(f"{service.url}/"))))
    give(page, secrets["admin"])
    create = page.get_by_role("region", name="Create a key")
    create.get_by_label("Description").fill("twice")
    click_twice(create.get_by_role("button", name="Create"))
    expect(page.get_by_label("The new key")).to_have_value(re.compile("^abk_"))
    click_twice(page.get_by_role("button", name="Show more"))
    expect(page.get_by_role("region", name="Audit log").locator("tbody tr")).to_have_count(100)
    page.wait_for_timeout(600)
    assert asked.count(("POST", "keys")) == 1
    assert asked.count(("GET", "audit?limit=50&before=1-0")) == 1


def test_whoever_may_not_is_told_in_place_of_forms(open_page: Open, locked: tuple[Served, dict[str, str]]) -> None:
    service, secrets = locked
    page = open_page("keys", url=service.url)
    give(page, secrets["learn"])
    said = "takes a key with the scope admin"
    expect(page.get_by_role("region", name="Keys", exact=True)).to_contain_text(said)
    for view in ("Models", "Ask me"):
        page.get_by_role("link", name=view).click()
        expect(page.get_by_role("main")).to_contain_text(said)
        expect(page.get_by_role("button", name="Create")).to_have_count(0)
