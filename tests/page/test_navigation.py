"""Views and models by address, and what the page says while nobody answers."""

from playwright.sync_api import expect

from abound.processes.startup_page import StartupStatus, response_to
from benchmarks.serving import Serving
from tests.page.conftest import Create, Open, http


def test_another_model_is_chosen_and_its_name_may_be_odd(open_page: Open, create_model: Create) -> None:
    bounds = {"max_features": 1000, "max_classes": 50, "max_memory": 2**24}
    address = create_model("an.other_1-b", **bounds)
    page = open_page("try")
    page.get_by_label("Model", exact=True).select_option("an.other_1-b")
    expect(page.get_by_text("This model has learned nothing yet.")).to_be_visible()
    assert page.url.endswith("#try/an.other_1-b")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("an.other_1-b")
    expect(page.get_by_role("region", name="Nothing learned yet")).to_be_visible()
    instance = {"text": "wheat", "labels": ["grain"]}
    http.post(f"{address}/learn", json=instance).raise_for_status()
    expect(page.get_by_text("Too few events yet.")).to_be_visible()
    budgets = page.get_by_role("region", name="Size against its bounds")
    for name, bound in (("Features", 1000), ("Classes", 50), ("Memory", 2**24)):
        expect(budgets.get_by_role("meter", name=name, exact=True)).to_have_attribute("aria-valuemax", str(bound))


def test_while_the_service_starts_the_page_says_so_and_comes_by_itself(open_page: Open, serving: Serving) -> None:
    page = open_page("labels", expected=("status of 503",))
    expect(page.locator(".label").first).to_be_visible()
    head, _, body = response_to(b"/", StartupStatus("compiling <kernels>", 0.25)).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if not line.startswith("Connection"))
    page.route(f"{serving.url}/", lambda route: route.fulfill(status=503, headers=headers, body=body))
    page.reload()
    expect(page.get_by_role("heading", name="Abound is starting")).to_be_visible()
    expect(page.get_by_text("Compiling <kernels>")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    page.unroute(f"{serving.url}/")
    expect(page.locator(".label").first).to_be_visible()
    assert page.url.endswith("#labels/default")
