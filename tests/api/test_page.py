"""The files of the page: where they are, how they are kept, and what they may do."""

import gzip
import re
from importlib import metadata
from importlib.resources import files

import pytest

from tests.support.served import Served, problem

FILES = sorted(file.name for file in files("abound").joinpath("web").iterdir() if file.name != "index.html")
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture(scope="module")
def base(service: Served) -> str:
    [digest] = set(re.findall(r'"(web/[0-9a-f]{16}/)[a-z]+\.[a-z]+"', service.http.get("/").text))
    return f"/{digest}"


def test_the_page(service: Served) -> None:
    answer = service.http.get("/").raise_for_status()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "<title>Abound</title>" in answer.text
    assert "web/@/" not in answer.text
    assert f"<p>Abound {metadata.version('abound')}</p>" in answer.text


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_its_type_and_is_kept_for_ever(service: Served, base: str, name: str) -> None:
    answer = service.http.get(base + name, headers=PLAIN).raise_for_status()
    expected = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
    assert answer.headers["content-type"].partition(";")[0] == expected
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "content-encoding" not in answer.headers
    assert answer.content == files("abound").joinpath("web", name).read_bytes()


def test_every_file_is_named_by_the_page_and_every_import_is_there(service: Served, base: str) -> None:
    page = service.http.get("/").text
    named = set(re.findall(rf'"{base[1:]}([a-z_]+\.[a-z]+)"', page))
    imported = {
        name
        for file in FILES
        for name in re.findall(r'(?:from|import\()\s*"\./([a-z_]+\.js)"', service.http.get(base + file).text)
    }
    assert named == set(FILES)
    assert imported <= named


@pytest.mark.parametrize("path", ["", "style.css", "app.js"])
def test_nothing_from_elsewhere_and_nothing_inline(service: Served, base: str, path: str) -> None:
    headers = service.http.get(base + path if path else "/").headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_no_markup_is_made_of_data() -> None:
    page = files("abound").joinpath("web")
    for name in [*FILES, "index.html"]:
        text = page.joinpath(name).read_text()
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage.*key", text
        )
        assert found is None, (name, found)
        if not name.endswith(".svg"):
            assert re.search(r"https?://(?!www\.w3\.org/2000/svg\")|[\"'(]//", text) is None, name
    index = page.joinpath("index.html").read_text()
    assert re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?! (type=\"module\" )?src=)", index) is None


@pytest.mark.parametrize("path", ["", "app.js"])
def test_what_a_client_has_is_not_sent_again(service: Served, base: str, path: str) -> None:
    where = base + path if path else "/"
    first = service.http.get(where)
    tag = first.headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]+(-gz)?"', tag)
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = service.http.get(where, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == first.headers["cache-control"]
        assert again.headers["vary"] == "Accept-Encoding"
        assert "content-security-policy" in again.headers
    assert service.http.get(where, headers={"if-none-match": '"other"'}).status_code == 200


def test_compressed_for_those_who_take_it(service: Served, base: str) -> None:
    plain = service.http.get(base + "app.js", headers=PLAIN)
    for accepted in ("gzip;q=0", "gzip; q=0.0", "", "br", "*", "xgzip"):
        given = service.http.get(base + "app.js", headers={"accept-encoding": accepted})
        assert "content-encoding" not in given.headers
    with service.http.stream("GET", base + "app.js", headers={"accept-encoding": "br, gzip;q=0.8"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        sent = b"".join(answer.iter_raw())
    assert gzip.decompress(sent) == plain.content
    assert len(sent) == int(answer.headers["content-length"]) < len(plain.content)
    assert plain.headers["etag"] != answer.headers["etag"]


@pytest.mark.parametrize(
    "path",
    ["index.html", "", "../site.py", "..%2fsite.py", "%2e%2e/site.py", "..%5csite.py", "app.js%00", "app.js/",
     "/etc/passwd", "%2fetc%2fpasswd", "nope.js"],
)  # fmt: skip
def test_nothing_else_is_served(service: Served, base: str, path: str) -> None:
    request = service.http.build_request("GET", service.url + "/x")
    request.url = request.url.copy_with(raw_path=(base + path).encode())
    problem(service.http.send(request), 404, "unknown-path")


def test_a_file_of_another_release_is_answered_and_not_kept(service: Served, base: str) -> None:
    other = service.http.get("/web/0123456789abcdef/app.js")
    assert other.content == service.http.get(base + "app.js").content
    assert other.headers["cache-control"] == "no-store"
    for where in ("/web/app.js", "/web//app.js", "/web/"):
        problem(service.http.get(where), 404, "unknown-path")
