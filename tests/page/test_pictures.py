"""Pictures of each view, light on a desk and dark on a phone; with ``SCREENSHOTS=1`` those of the documents."""

from __future__ import annotations

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

from benchmarks.serving import Serving
from tests.page.conftest import VIEWS, Open, http, learn, painted
from tests.page.newsroom import news

pytestmark = pytest.mark.long

FOR_DOCUMENTS = bool(os.environ.get("SCREENSHOTS"))
DOCUMENTS = Path(__file__).parents[2] / "docs" / "screenshots"
CORRECTED = "prices of rooftop panels fall as silicon wafers get cheaper"
TEXT = "the price of wheat: drought in kansas, and a tariff dispute of ministers"


@pytest.fixture(scope="module")
def contest(serving: Serving) -> None:
    """For the documents, enter two versions as challengers, and the model calibrate."""
    if not FOR_DOCUMENTS:
        return
    http.put(f"{serving.url}/models/default", json={"calibrate": True}).raise_for_status()
    with traffic(serving.url):
        for name, n in (("news-2025", 3000), ("news-2026", 5000)):
            file = "".join(json.dumps(one) + "\n" for one in news(n, seed=n)).encode()
            path = f"{serving.url}/datasets/{name}"
            http.put(path, params={"filename": "x.jsonl"}, content=file, timeout=120).raise_for_status()
        jobs = [ask(serving, "jobs", {"method": name})["id"] for name in ("swnn", "ind")]
        for job in jobs:
            version = ended(serving, job)["version"]
            ask(serving, "models/default/challengers", {"version": version})
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


def ask(serving: Serving, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(f"{serving.url}/{path}", json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def ended(serving: Serving, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while True:
        found: dict[str, Any] = http.get(f"{serving.url}/jobs/{job}").json()
        if found["state"] == "succeeded":
            return found
        assert found["state"] in ("queued", "running"), found
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_pictures_of_each_view(
    contest: None, serving: Serving, open_page: Open, tmp_path: Path, scheme: str, width: int
) -> None:
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for view, title in VIEWS.items():
        page.get_by_role("link", name=title).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        show(page, view, serving.url)
        page.evaluate("document.activeElement.blur()")
        picture = tmp_path / f"{view}-{scheme}.png"
        page.screenshot(full_page=True, path=picture)
        assert picture.stat().st_size > 10_000
        if FOR_DOCUMENTS:
            keep(picture)


def show(page: Any, view: str, url: str) -> None:
    """Bring a view into the state that its picture shows."""
    if view == "overview":
        with traffic(url):
            painted(page, "Events a second")
            if FOR_DOCUMENTS:
                painted(page, "How far probabilities were right")
                page.wait_for_timeout(20_000)
        expect_equal_digests(page)
    elif view == "try":
        page.get_by_role("textbox", name="Text").fill(TEXT)
        painted(page, "Why")
        if FOR_DOCUMENTS:
            expect(page.locator(".rank .probability").first).to_be_visible()
    elif view == "labels":
        page.locator(".label", has_text="coffee").click()
        painted(page, "What points to it")
    elif view == "versions":
        expect(page.get_by_label("Method", exact=True)).to_be_visible()
        if FOR_DOCUMENTS:
            painted(page, "Challengers")
            boxes = page.get_by_role("checkbox", name="Compare")
            boxes.nth(0).check()
            boxes.nth(1).check()
            expect(page.get_by_text("Side by side", exact=True)).to_be_visible()
    elif view == "datasets":
        expect(page.locator(".card").nth(1)).to_contain_text("news-2026" if FOR_DOCUMENTS else "No data sets yet")
    elif view == "ask":
        body = {"instances": [{"text": TEXT}, {"text": "oil wheat futures"}], "remember": True}
        http.post(f"{url}/classify", json=body).raise_for_status()
        page.reload()
        expect(page.locator(".rank").first).to_be_visible()
    elif view == "models":
        expect(page.get_by_role("button", name="Create")).to_be_visible()
    else:
        expect(page.get_by_text("abound keys create")).to_be_visible()


@pytest.mark.skipif(not FOR_DOCUMENTS, reason="makes the animation of the README; SCREENSHOTS=1 asks for it")
def test_animation_of_a_correction(serving: Serving, open_page: Open) -> None:
    """Type a text, see a wrong label first, name the right one, and see it first."""
    http.put(f"{serving.url}/models/news", json={"update": "sls"}).raise_for_status()
    for _ in range(3):
        learn(f"{serving.url}/models/news", list(news(1000, seed=7, change=1)))
    page = open_page("try", "news", viewport={"width": 900, "height": 880})
    frames: list[tuple[bytes, int]] = []

    def take(milliseconds: int) -> None:
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(400)
        frames.append((page.screenshot(), milliseconds))

    take(600)
    for word in CORRECTED.split():
        page.get_by_role("textbox", name="Text").press_sequentially(f"{word} ")
        take(250)
    take(1500)
    page.get_by_label("Right labels").press_sequentially("solar power")
    take(900)
    page.get_by_role("button", name="Learn", exact=True).click()
    expect(page.locator(".rank .name").first).to_have_text("solar power")
    take(3500)
    keep_animation("try.gif", frames)


def expect_equal_digests(page: Any) -> None:
    """At rest both replicas show the same digest, each for the offset that it is at."""
    page.wait_for_function(
        """() => {
            const shown = [...document.querySelectorAll("code.digest")].map((one) => one.textContent);
            const areNow = document.querySelector("code.digest + .hint") === null;
            return areNow && shown.length === 2 && shown[0] !== "–" && shown[0] === shown[1];
        }"""
    )


def keep(picture: Path) -> None:
    """Put a picture into the documents, in few colours: they are many bytes otherwise."""
    from PIL import Image

    DOCUMENTS.mkdir(exist_ok=True)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(96).save(DOCUMENTS / picture.name, optimize=True)


def keep_animation(name: str, frames: list[tuple[bytes, int]]) -> None:
    """Put an animation into the documents: pictures, each with the milliseconds for which it is shown."""
    from PIL import Image

    images = [Image.open(io.BytesIO(picture)).convert("RGB").quantize(64) for picture, _ in frames]
    durations = [milliseconds for _, milliseconds in frames]
    path = DOCUMENTS / name
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    assert path.stat().st_size < 2_000_000
