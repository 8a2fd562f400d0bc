"""Try it: ranked as it is typed, explained, and taught."""

import json
import re
from typing import Any

from playwright.sync_api import expect

from benchmarks.serving import Serving
from tests.page.conftest import NARROW, Create, Open, click_twice, http, learn, stats
from tests.page.test_accessible import fits


def test_ranked_as_it_is_typed_and_explained(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    expect(page.get_by_text("Nothing typed yet.")).to_be_visible()
    page.get_by_role("textbox", name="Text").press_sequentially("wheat harvest in kansas", delay=5)
    first = page.locator(".rank").first
    expect(first.locator(".name")).to_have_text("grain")
    said = http.post(
        f"{serving.url}/classify", json={"text": "wheat harvest in kansas", "explain": True, "version": "live"}
    ).json()["labels"]
    expect(page.locator(".rank .name")).to_have_text([one["label"] for one in said])
    why = page.get_by_role("region", name="Why")
    expect(why.locator(".bars .break")).to_have_text([one["feature"] for one in said[0]["because"]])
    expect(why.locator("mark").first).to_have_text("wheat")
    page.get_by_text("As curl / Python").click()
    expect(page.get_by_role("region", name="Request for curl")).to_contain_text('"text":"wheat harvest in kansas"')
    page.locator(".rank").nth(1).click()
    expect(why).to_contain_text(f"For {said[1]['label']}")


def test_a_correction_changes_the_answer(open_page: Open, serving: Serving) -> None:
    page = open_page("try")
    page.get_by_role("radio", name="Features").check()
    box = page.get_by_role("textbox", name="Features")
    box.fill("zeppelin: 2\nvia: air")
    expect(page.get_by_text("No label has any of these features.")).to_be_visible()
    learned = stats(serving)["learned"]
    page.get_by_label("Right labels").fill("airships")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “airships”.")).to_be_visible()
    expect(page.locator(".rank .name").first).to_contain_text("airships")
    box.fill("zeppelin: 2\nvia: sea")
    expect(page.locator(".rank .name").first).to_have_text("airships")
    page.get_by_label("Right labels").fill("<b>boats</b>")
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator(".rank .name", has_text="<b>boats</b>")).to_be_visible()
    assert page.locator(".rank .name b").count() == 0
    for _ in range(3):
        before = page.locator(".rank .score").first.text_content()
        page.get_by_role("button", name="<b>boats</b> is right").click()
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(page.locator(".rank .score").first).not_to_have_text(before)
    expect(page.locator(".rank .name").first).to_contain_text("<b>boats</b>")
    assert stats(serving)["learned"] == learned + 5


def test_several_labels_are_chosen_and_learned_together_and_undone(open_page: Open, serving: Serving) -> None:
    page = open_page("try", **NARROW)
    sent = []
    page.on("request", lambda request: request.url.endswith("/learn") and sent.append(request.post_data_json))
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas zeppelin")
    ranked = page.get_by_role("button", name="grain is right")
    ranked.click()
    expect(ranked).to_have_attribute("aria-pressed", "true")
    chips = page.get_by_role("list", name="Chosen").get_by_role("listitem")
    typed = page.get_by_label("Right labels")
    typed.press_sequentially('wheat, "ships, air"')
    typed.press("Enter")
    expect(chips).to_have_text([re.compile(one) for one in ("^grain", "^wheat", "^ships, air")])
    fits(page, 390)
    chips.nth(1).get_by_role("button").click()
    expect(chips).to_have_count(2)
    typed.fill("aviation")
    typed.press("Control+Enter")
    expect(page.get_by_text("Learned “grain”, “ships, air”, “aviation”.")).to_be_visible()
    assert [one["labels"] for one in sent] == [["grain", "ships, air", "aviation"]]
    expect(chips).to_have_count(0)
    expect(page.locator(".rank .name", has_text="aviation")).to_be_visible()
    learned = stats(serving)["learned"]
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Forgotten: “grain”, “ships, air”, “aviation”.")).to_be_visible(timeout=120_000)
    expect(page.locator(".rank .name", has_text="aviation")).to_have_count(0)
    assert stats(serving)["learned"] == learned - 1


def test_the_others_are_ranked_anew_given_a_marked_label(open_page: Open, create_model: Create) -> None:
    address = create_model("sets", update="sls")
    learn(address, [{"text": "red", "labels": [["shirt", "silk"], ["hat", "felt"]][i % 2]} for i in range(80)])
    page = open_page("try", "sets")
    page.get_by_role("textbox", name="Text").fill("red")
    names = page.locator(".rank .name")
    expect(names).to_have_count(4)
    for right, other in (("shirt", "silk"), ("hat", "felt")):
        page.get_by_role("button", name=f"{right} is right").click()
        expect(names.nth(0)).to_have_text(right)
        expect(names.nth(1)).to_have_text(other)
        page.get_by_role("button", name=f"{right} is right").click()


def test_labels_are_found_by_name_and_new_ones_are_asked_for(open_page: Open, create_model: Create) -> None:
    address = create_model("by-name", update="sls")
    labels = [{"label": "c7", "name": "Winter wheat"}, {"label": "c8", "name": "Rye"}]
    http.put(f"{address}/labels", json={"labels": labels}).raise_for_status()
    learn(address, [{"text": "flour of wheat", "labels": ["c7"]}, {"text": "flour of rye", "labels": ["c8"]}])
    page = open_page("try", "by-name")
    page.get_by_role("textbox", name="Text").fill("flour of wheat")
    expect(page.locator(".rank .name")).to_contain_text(["Winter wheat", "Rye"])
    typed, chips = page.get_by_label("Right labels"), page.get_by_role("list", name="Chosen").get_by_role("listitem")
    typed.press_sequentially("WHEAT")
    expect(page.get_by_role("option")).to_contain_text(["c7"])
    typed.press("ArrowDown")
    with page.expect_response("**/labels?**"):
        typed.dispatch_event("input")  # late suggestions
    typed.press("Enter")
    expect(chips).to_contain_text(["Winter wheat"])
    typed.fill("rye")
    typed.press("Enter")
    expect(chips).to_contain_text(["Winter wheat", "Rye"])
    typed.fill("wheat")
    typed.press("Enter")
    dialog = page.get_by_role("dialog", name="Make a new label “wheat”?")
    dialog.get_by_role("button", name="Leave it").click()
    expect(typed).to_have_value("wheat")
    typed.fill("")
    page.get_by_role("link", name="Labels").click()
    page.get_by_role("link", name="Try it").click()
    expect(page.get_by_role("textbox", name="Text")).to_have_value("flour of wheat")
    expect(chips).to_contain_text(["Winter wheat", "Rye"])
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("Learned “Winter wheat (c7)”, “Rye (c8)”.")).to_be_visible()


def test_an_event_is_corrected_and_undone(open_page: Open, create_model: Create) -> None:
    address = create_model("events")
    learn(address, [{"text": "flour of wheat", "labels": ["grain"]}])
    page = open_page("events", "events", **NARROW)
    expect(page.locator("tbody tr")).to_contain_text(["grain"])
    fits(page, 390)
    assert all(one.bounding_box()["x"] + one.bounding_box()["width"] <= 390 for one in page.locator("tbody td").all())
    page.get_by_role("button", name="Correct").click()
    expect(page.get_by_text("A correction: labels that you remove are taught as wrong.")).to_be_visible()
    page.get_by_role("button", name="Remove grain").click()
    page.get_by_label("Right labels").fill("flour")
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Learn", exact=True).click()
    assert learning.value.post_data_json["rejected"] == ["grain"]
    expect(page.get_by_text("Learned “flour”, not “grain”.")).to_be_visible()
    page.get_by_role("link", name="Correct it under Events").click()
    rows = page.locator("tbody tr")
    expect(rows).to_contain_text(["page", "grain"])
    page.get_by_label("Source").fill("page")
    expect(rows).to_have_count(1)
    rows.get_by_role("button", name="Undo").click()
    page.get_by_role("dialog").get_by_role("button", name="Undo it").click()
    expect(page.get_by_text("Forgotten.", exact=True).first).to_be_visible(timeout=120_000)
    assert http.get(f"{address}/stats").json()["learned"] == 1


def test_a_suspicious_event_is_right_after_all(open_page: Open, create_model: Create) -> None:
    address = create_model("doubts", update="sls", calibrate=True)
    texts = {"theft": "my card was stolen", "refund": "send the money back"}
    learn(address, [{"text": f"{texts[label]} {n}", "labels": [label]} for n in range(30) for label in texts])
    for source in ("page", "import"):
        http.post(f"{address}/learn", json={"text": "my card was stolen", "labels": ["refund"], "source": source})
    page = open_page("events", "doubts", **NARROW)
    page.get_by_label("Suspicious").check()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="import: 1").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_role("button", name="import: 1")).to_be_focused()
    expect(rows).to_contain_text(re.compile(r"taught refund, but the model was \d\d\.\d % sure of theft"))
    fits(page, 390)
    page.get_by_role("button", name="Right after all").click()
    expect(page.get_by_text("No suspicious event of this source.")).to_be_visible()
    page.get_by_label("Source").fill("")
    page.get_by_label("Newest").check()
    expect(rows).to_have_count(50)


def test_a_wrong_label_is_rejected(open_page: Open) -> None:
    page = open_page("try")
    answer = {"offset": "1-0.0", "applied": True, "durability": "log", "rank": None, "updated": True}
    page.route("**/learn", lambda route: route.fulfill(json=answer))
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    right, wrong = (page.get_by_role("button", name=f"grain is {word}", exact=True) for word in ("right", "not right"))
    right.click()
    wrong.click()
    expect(right).to_have_attribute("aria-pressed", "false")
    page.get_by_label("Weight").select_option("0.5")
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Learn", exact=True).click()
    sent = learning.value.post_data_json
    assert (sent["labels"], sent["rejected"], sent["weight"]) == ([], ["grain"], 0.5)
    expect(page.get_by_text("Learned not “grain”.")).to_be_visible()
    expect(page.get_by_label("Weight")).to_have_value("1")


def test_labels_that_are_not_all_leave_the_others_open(open_page: Open) -> None:
    page = open_page("keys")
    event = {"offset": "2-0.0", "time": 1.7e9, "labels": ["grain"], "rejected": [], "partial": True, "text": "wheat"}
    page.route("**/events?*", lambda route: route.fulfill(json={"events": [event]}))
    page.route("**/learn", lambda route: route.fulfill(json={"offset": "1-0.0", "applied": True, "rank": 1}))
    page.get_by_role("link", name="Events").click()
    expect(page.locator("tbody tr")).to_contain_text(["grainnot all labels"])
    page.get_by_role("button", name="Correct").click()
    expect(page.get_by_label("Only these are sure")).to_be_checked()
    with page.expect_request("**/learn") as learning:
        page.get_by_role("button", name="Learn", exact=True).click()
    assert learning.value.post_data_json["partial"] is True
    page.get_by_text("As curl / Python").first.click()
    expect(page.get_by_role("region", name="Learn request for curl")).to_contain_text('"partial":true')


def test_features_in_lines_are_sent_as_they_are_written(open_page: Open) -> None:
    page = open_page("try")
    page.get_by_role("radio", name="Features").check()
    written = "__proto__: 3\ntag: a\ntag: b\ntag: b\nzip: 00100\nprice: 2.50\nbig: 1e999\nmany: 1e3\nurgent"
    with page.expect_request(
        lambda request: request.url.endswith("/classify") and '"many"' in (request.post_data or "")
    ) as asked:
        page.get_by_role("textbox", name="Features").fill(written)
    assert json.loads(asked.value.post_data)["features"] == {
        "__proto__": 3,
        "tag": ["a", "b"],
        "zip": "00100",
        "price": 2.5,
        "big": "1e999",
        "many": 1000,
        "urgent": True,
    }


def test_what_is_wrong_with_an_instance_is_said(open_page: Open) -> None:
    page = open_page("try", expected=("status of 422",))
    page.get_by_role("radio", name="Features").check()
    box = page.get_by_role("textbox", name="Features")
    box.fill('{"price": {"eur": 3}}')
    expect(page.get_by_role("alert")).to_contain_text("must be a number, a string")
    expect(page.get_by_role("alert")).to_contain_text("features.price")
    box.fill('{"price": ')
    expect(page.get_by_text("Not JSON yet")).to_be_visible()
    box.fill("price:")
    expect(page.get_by_text("has no value yet")).to_be_visible()
    box.fill("price: 3")
    page.get_by_label("Right labels").fill("L" * 2000)
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.get_by_text("a label has at most 512 bytes")).to_be_visible()
    expect(page.locator(".chip")).to_contain_text("L" * 2000)


def test_a_double_click_learns_once_and_a_retry_has_its_key(open_page: Open, serving: Serving) -> None:
    page = open_page("try", expected=("ERR_FAILED",))
    keys: list[str] = []

    def lose_second(route: Any) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 2:
            route.fetch()  # it is learned, and the answer lost
            return route.abort()
        return route.continue_()

    page.route("**/learn", lose_second)
    page.get_by_role("textbox", name="Text").fill("wheat harvest in kansas")
    right, teach = (page.get_by_role("button", name=name, exact=True) for name in ("grain is right", "Learn"))
    right.click()
    learned = stats(serving)["learned"]
    click_twice(teach)
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    expect(teach).to_be_enabled()
    right.click()
    teach.click()
    expect(page.get_by_role("alert")).to_contain_text("No answer")
    teach.click()
    expect(page.get_by_text("Learned “grain”.")).to_be_visible()
    assert keys[1] == keys[2] != keys[0]
    assert stats(serving)["learned"] == learned + 2
