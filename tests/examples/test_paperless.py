"""The hook for paperless-ngx, as a process, against a service and a server with the documented REST API."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import stand_in
from tests.support.served import fresh_model

HOOK = Path(__file__).parents[2] / "examples" / "paperless" / "post_consume.py"
INBOX, BILL, CONTRACT = 1, 2, 3


class Paperless(stand_in.JsonHandler):
    """Documents and tags in pages of two, for a token."""

    documents: dict[int, dict[str, Any]]
    tags = ((INBOX, "inbox"), (BILL, "bill"), (CONTRACT, "contract"))

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/api/tags/":
            self.page([{"id": n, "name": name, "is_inbox_tag": n == INBOX} for n, name in self.tags], query)
        elif path == "/api/documents/":
            assert query["is_in_inbox"] == ["false"]
            since = query.get("modified__gte", [""])[0]
            reviewed = [one for one in self.documents.values() if INBOX not in one["tags"]]
            self.page([one for one in reviewed if one["modified"] >= since], query)
        else:
            self.answer(self.documents[int(path.split("/")[-2])])

    def do_PATCH(self) -> None:
        document = self.documents[int(self.path.split("/")[-2])]
        document |= self.sent()
        self.answer(document)

    def page(self, rows: list[dict[str, Any]], query: dict[str, list[str]]) -> None:
        first = 2 * (int(query["page"][0]) - 1)
        more = "http://elsewhere/?page" if len(rows) > first + 2 else None
        self.answer({"count": len(rows), "next": more, "results": rows[first : first + 2]})

    def answer(self, said: object, status: int = 200, **headers: str) -> None:
        allowed = self.headers["authorization"] == "Token secret"
        super().answer(said if allowed else {}, status if allowed else 401, **headers)


def document(number: int, content: str, *tags: int) -> dict[str, Any]:
    modified = f"2026-11-{number:02}T12:00:00Z"
    return {"id": number, "title": f"scan {number}", "content": content, "tags": list(tags), "modified": modified}


@pytest.fixture
def paperless() -> Iterator[str]:
    scans = [
        document(1, "please pay the amount of this invoice", BILL),
        document(2, "the parties agree on the terms", CONTRACT),
        document(3, "pay this invoice by May", BILL),
        document(4, "invoice: amount to pay", INBOX),
        document(5, "no tags yet"),
    ]
    Paperless.documents = {one["id"]: one for one in scans}
    with stand_in.running(Paperless) as url:
        yield url


def run(paperless: str, url: str, model: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    added = {"PAPERLESS_URL": paperless, "PAPERLESS_TOKEN": "secret", "ABOUND_URL": url, "ABOUND_MODEL": model}
    command = [sys.executable, str(HOOK), *options]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | added | environment)


def test_reviewed_documents_are_learned_and_new_ones_tagged(service, paperless):
    name = fresh_model(service, update="sls")
    for _ in range(2):  # each state of a document is learned once
        done = run(paperless, service.url, name, "--learn")
        assert (done.returncode, done.stdout) == (0, "3 documents learned\n"), done.stderr
    assert service.learned(name) == 3
    # paperless-ngx passes arguments as well.
    done = run(paperless, service.url, name, "4", "scan.pdf", DOCUMENT_ID="4")
    assert (done.returncode, done.stdout) == (0, "document 4: added bill\n"), done.stderr
    assert Paperless.documents[4]["tags"] == [INBOX, BILL]
    assert run(paperless, service.url, name, DOCUMENT_ID="4").stdout == "document 4: added no tags\n"
    # A correction is learned.
    Paperless.documents[4] |= {"tags": [CONTRACT], "modified": "2026-11-20T12:00:00Z"}
    assert run(paperless, service.url, name, "--learn", "--since", "2026-11-19").stdout == "1 documents learned\n"
    assert service.learned(name) == 4
