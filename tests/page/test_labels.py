"""The view of labels, and labels of odd names in all views."""

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, VIEWS, Create, Open, http, learn
from tests.page.test_accessible import fits


def test_a_long_label_is_clamped_and_never_widens_the_page(open_page: Open, create_model: Create) -> None:
    address, long = create_model("long"), "A" * 500
    learn(address, [{"text": "wheat", "labels": [long, "top_up_reverted"]}])
    page = open_page("labels", "long", **NARROW)
    expect(page.locator(".rank .name")).to_have_text([long, "top_up_reverted"])
    expect(page.locator(".rank .name wbr")).to_have_count(2)
    for view in ("labels", "try"):
        if view == "try":
            page.get_by_role("link", name=VIEWS[view]).click()
            page.get_by_role("textbox", name="Text").fill("wheat")
            page.locator(".right").first.click()
        name = page.locator(".rank .name").first
        expect(name).to_have_attribute("title", long)
        assert name.bounding_box()["height"] < 90
        name.click()
        said = page.locator("strong.break").first
        expect(said).to_have_attribute("title", long)
        assert said.bounding_box()["height"] < 90
        fits(page, 390)


def test_labels(open_page: Open, serving: Serving) -> None:
    page = open_page("labels")
    said = http.get(f"{serving.url}/models/default/labels", params={"contains": "OFF"}).json()
    expect(page.locator(".label").first).to_be_visible()
    page.get_by_label("Contains").fill("OFF")
    expect(page.locator(".label .name")).to_have_text(said["labels"])
    expect(page.locator(".label .score")).to_contain_text([f"learned {n:,}×" for n in said["learned"]])
    page.locator(".label", has_text="coffee").click()
    about = http.get(f"{serving.url}/models/default/labels/coffee").json()
    points = page.get_by_role("region", name="About a label")
    expect(points).to_contain_text(f"coffee was learned {about['learned']:,} times. {about['total']:,} features vote")
    expect(points.locator(".bars .break")).to_have_text([one["feature"] for one in about["features"][:20]])
    page.get_by_label("Contains").fill("nothing of it")
    expect(page.get_by_text("No label has that in it.")).to_be_visible()


def test_a_label_is_named_renamed_merged_and_retired(open_page: Open, create_model: Create) -> None:
    address = create_model("changed")
    learn(
        address,
        [{"text": word, "labels": [label]} for word, label in (("wool", "sock"), ("tube", "tv"), ("flat", "TV"))],
    )
    page = open_page("labels", "changed", **NARROW)
    about, dialog = page.get_by_role("region", name="About a label"), page.get_by_role("dialog")

    def choose(label: str, part: str) -> None:
        page.locator(f".label[data-label={label}]").click()
        expect(about.locator("strong")).to_have_text(label)
        about.get_by_text(part).click()

    choose("sock", "Name and parent")
    about.get_by_label("Name").fill("Socks & stockings")
    about.get_by_role("button", name="Save").click()
    expect(page.locator(".label .name").first).to_have_text("Socks & stockings")
    choose("tv", "Name and parent")
    about.get_by_label("Parent").fill("socks & Stockings")
    about.get_by_role("button", name="Save").click()
    expect(about.locator("dl.facts")).to_contain_text("sock")
    choose("tv", "Rename, merge, retire")
    about.get_by_label("Merge into").fill("TV")
    about.get_by_role("button", name="Merge").click()
    dialog.get_by_role("button", name="Merge").click()
    expect(about).to_contain_text("TV was learned 2 times.")
    about.get_by_text("Rename, merge, retire").click()
    about.get_by_label("New label").fill("telly")
    about.get_by_role("button", name="Rename").click()
    fits(page, 390)
    dialog.get_by_role("button", name="Rename").click()
    expect(about).to_contain_text("telly was learned 2 times.")
    about.get_by_text("Rename, merge, retire").click()
    about.get_by_role("button", name="Retire").click()
    dialog.get_by_role("button", name="Retire").click()
    expect(about.locator(".tag")).to_have_text("retired")
    page.get_by_role("button", name="Undo retire telly").click()
    dialog.get_by_role("button", name="Undo").click()
    expect(about.locator(".tag")).to_have_count(0)
    fits(page, 390)


def test_registered_names_stand_before_labels_and_metadata_is_shown(open_page: Open, create_model: Create) -> None:
    address, name = create_model("registered"), "Wheat <i>& rye</i> " + "x" * 400
    metadata = {"colour": "red", "synonyms": ["corn", "maize"], "url": "https://example.org/" + "a" * 300}
    labels = [{"label": "c7", "name": name, "parent": "c0", "metadata": metadata}]
    http.put(f"{address}/labels", json={"labels": labels}).raise_for_status()
    learn(address, [{"text": "wheat", "labels": ["c9"]}])
    page = open_page("labels", "registered", **NARROW)
    page.locator(".label", has_text="c7").click()
    facts = page.get_by_role("region", name="About a label").locator("dl.facts")
    expect(facts.locator("dt")).to_have_text(["label", "parent", "colour", "synonyms", "url"])
    expect(facts.locator("dd")).to_have_text(["c7", "c0", "red", '["corn","maize"]', metadata["url"]])
    expect(facts.get_by_role("link")).to_have_attribute("href", metadata["url"])
    fits(page, 390)
    page.locator(".label", has_text="c9").click()
    expect(page.get_by_role("region", name="About a label")).to_contain_text("c9 was learned 1 time.")
    page.get_by_role("link", name=VIEWS["try"]).click()
    page.get_by_role("textbox", name="Text").fill("wheat")
    rows = page.locator(".ranks li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="c7").locator(".called")).to_have_text("c7")
    expect(rows.filter(has_text="c7").locator(".name")).to_have_text(name)
    expect(rows.filter(has_text="c9").locator(".called")).to_have_count(0)
    fits(page, 390)


def test_labels_that_leave_no_trace_are_shown_escaped(open_page: Open, create_model: Create) -> None:
    looks = {
        "\u200b": r"\u200b",
        "\u202eliah": r"\u202eliah",
        "a\u200bb": r"a\u200bb",
        "a  b": "a ␣b",
        "a\nb": r"a\u000ab",
        "می\u200cخواهم": "می\u200cخواهم",
        "👩\u200d🚀❤\ufe0f": "👩\u200d🚀❤\ufe0f",
    }
    instances = [{"features": {"f": 1, f"word{at}": 1}, "labels": [one]} for at, one in enumerate(looks)]
    learn(create_model("unseen", normalize=False), instances)
    page = open_page("labels", "unseen")
    page.wait_for_function(
        "(looks) => [...document.querySelectorAll('.label .name')].map((one) => one.textContent).join('|') === looks",
        arg="|".join(looks.values()),
    )
