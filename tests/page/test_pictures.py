"""The pictures of the documents, light on a desk and dark on a phone; taken with ``SCREENSHOTS=1`` only."""

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from abound import Client, Labelled, Refused
from benchmarks.serving import Serving
from benchmarks.sets import read_file
from tests.page.conftest import NARROW, VIEWS, WIDE, Open, http, painted
from tests.page.newsroom import news

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("SCREENSHOTS"), reason="makes pictures; SCREENSHOTS=1 asks for it"),
]

DOCUMENTS = Path(__file__).parents[2] / "docs" / "screenshots"
TEXT = "the price of wheat: drought in kansas, and a tariff dispute of ministers"


@pytest.fixture(scope="module")
def contest(serving: Serving) -> None:
    """Enter two versions as challengers."""
    with Client(serving.url) as client, traffic(serving.url):
        for name, n in (("news-2025", 3000), ("news-2026", 5000)):
            lines = [json.dumps(one).encode() + b"\n" for one in news(n, seed=n)]
            client.put_dataset("x.jsonl", name, pieces=lines)
        for job in [client.submit({"method": name}) for name in ("swnn", "ind")]:
            client.enter_challenger("default", client.wait(job)["version"])
        time.sleep(20)  # for the contest to have something to show


@contextmanager
def traffic(url: str) -> Iterator[None]:
    stop = threading.Event()

    def teach() -> None:
        instances = news(1_000_000, seed=23, change=0)
        while not stop.wait(0.1):
            http.post(f"{url}/learn", json={"instances": [next(instances) for _ in range(10)]}).raise_for_status()

    learning = threading.Thread(target=teach)
    learning.start()
    try:
        yield
    finally:
        stop.set()
        learning.join()


@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["light", "dark"])
def test_pictures_of_each_view(contest, serving, open_page, tmp_path, window):
    from PIL import Image

    page = open_page(**window)
    for view, title in VIEWS.items():
        page.get_by_role("link", name=title).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        show(page, view, serving.url)
        page.evaluate("document.activeElement.blur()")
        picture = tmp_path / f"{view}-{window['color_scheme']}.png"
        page.screenshot(full_page=True, path=picture)
        with Image.open(picture) as image:  # in few colours: they are many bytes otherwise
            image.convert("RGB").quantize(96).save(DOCUMENTS / picture.name, optimize=True)


def show(page: Any, view: str, url: str) -> None:
    """Bring a view into the state that its picture shows."""
    if view == "overview":
        with traffic(url):
            painted(page, "Are the probabilities right?")
            page.wait_for_timeout(20_000)
    elif view == "try":
        page.get_by_role("textbox", name="Text").fill(TEXT)
        expect(page.locator(".bars")).to_be_visible()
        expect(page.locator(".rank .probability").first).to_be_visible()
    elif view == "labels":
        page.locator(".label", has_text="coffee").click()
        expect(page.locator(".bars")).to_be_visible()
    elif view == "versions":
        expect(page.get_by_role("region", name="Challengers", exact=True).locator("tbody tr").first).to_be_visible()
        for box in page.get_by_role("checkbox", name="Compare").all()[:2]:
            box.check()
        expect(page.get_by_text("Side by side", exact=True)).to_be_visible()
    elif view == "ask":
        body = {"instances": [{"text": TEXT}, {"text": "oil wheat futures"}], "remember": True}
        http.post(f"{url}/classify", json=body).raise_for_status()
        page.reload()
        expect(page.locator(".rank").first).to_be_visible()
    else:
        shown = {"datasets": "news-2026", "files": "No file chosen.", "models": "Name, rule and settings"}
        shown |= {"events": "Correct", "keys": "abound keys create"}
        expect(page.get_by_text(shown[view]).first).to_be_visible()


CAPTION = """text => {
    const bar = document.getElementById("caption") ?? document.createElement("div");
    document.body.prepend(bar);
    bar.id = "caption";
    bar.textContent = text;
    bar.style.cssText = "padding: 10px; text-align: center; font-size: 20px; color: white; background: #1f3a93";
}"""


def test_animation_of_a_correction(serving: Serving, open_page: Open) -> None:
    """150 intents: a text has a wrong label first; teach one of other words, and it has the right one."""
    from PIL import Image

    data = os.environ.get("ABOUND_DATA")
    if not data:
        pytest.skip("wants clinc150: ABOUND_DATA names the directory of the data sets")
    rows = [one for one in read_file(f"{data}/clinc150/train.jsonl.gz") if one.labels]
    with Client(serving.url) as client:
        client.configure("assistant", {"update": "sls", "analyzer": {"embed": "wordllama"}, "decide": {"none": 0}})
        taught = [Labelled(text=one.text, labels=list(one.labels)) for one in rows]
        assert not any(isinstance(one, Refused) for one in client.model("assistant").learn_many(taught))
    page = open_page("try", "assistant", viewport={"width": 1000, "height": 840})
    images, durations = [], []

    def take(milliseconds: int) -> None:
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(400)
        images.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(64))
        durations.append(milliseconds)

    def write(text: str, first: str) -> None:
        page.get_by_role("textbox", name="Text").fill(text)
        expect(page.locator(".rank .name").first).to_have_text(first)

    page.evaluate(CAPTION, "1. None of the 150 intents fits: it is unsure, and asks a person")
    write("i want to see a lawyer", "goodbye")
    take(3000)
    page.evaluate(CAPTION, "2. Teach it another text, with a new label: legal_help")
    write("do i need an attorney", "international_visa")
    page.get_by_label("Right labels").press_sequentially("legal_help")
    take(2000)
    learn = page.get_by_role("button", name="Learn", exact=True)
    learn.evaluate("one => { one.style.outline = '5px solid #e07b00'; one.style.outlineOffset = '3px'; }")
    take(1200)
    learn.click()
    learn.evaluate("one => one.removeAttribute('style')")
    expect(page.locator(".rank .name").first).to_have_text("legal_help")
    page.evaluate(CAPTION, "3. The first text again, which was not taught: the encoder relates lawyer to attorney")
    write("i want to see a lawyer", "legal_help")
    take(4500)
    path = DOCUMENTS / "try.gif"
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    assert path.stat().st_size < 2_000_000
