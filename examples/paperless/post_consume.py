#!/usr/bin/env python3
"""Tag documents of paperless-ngx, and learn from the tags that people gave.

As ``PAPERLESS_POST_CONSUME_SCRIPT`` it adds tags to the document ``DOCUMENT_ID``. With ``--learn`` it learns the
documents that left the inbox; run that by cron.

``PAPERLESS_URL`` and ``PAPERLESS_TOKEN`` name paperless-ngx and the token of a user, ``ABOUND_URL`` and ``ABOUND_KEY``
the service and its key, ``ABOUND_MODEL`` the model, ``ABOUND_THRESHOLD`` the least score of a tag (0.1).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from abound import Client, Model
from abound.client import ClientError, Labelled, Refused

SOURCE = "paperless"
MOST_CHARACTERS = 100_000
"""Longer contents are cut: the first pages say what a document is."""

Json = dict[str, Any]


class Paperless:
    """The REST API of paperless-ngx, as far as it is needed."""

    def __init__(self, url: str, token: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Token {token}"}, timeout=30.0)

    def document(self, number: int) -> Json:
        """Return a document."""
        return self._checked(self.http.get(f"/api/documents/{number}/"))

    def reviewed(self, since: str | None) -> Iterator[Json]:
        """Yield the documents outside of the inbox, the least recently modified first."""
        yield from self._pages(
            "/api/documents/",
            {"is_in_inbox": "false", "ordering": "modified"} | ({"modified__gte": since} if since else {}),
        )

    def tags(self) -> dict[int, str]:
        """Return the names of the tags by id, without those of the inbox."""
        return {one["id"]: one["name"] for one in self._pages("/api/tags/", {}) if not one["is_inbox_tag"]}

    def set_tags(self, number: int, tags: list[int]) -> None:
        """Replace the tags of a document."""
        self._checked(self.http.patch(f"/api/documents/{number}/", json={"tags": tags}))

    def _pages(self, path: str, query: dict[str, str]) -> Iterator[Json]:
        page: Json = {"next": True}
        number = 0
        while page["next"]:
            number += 1
            page = self._checked(self.http.get(path, params=query | {"page": str(number), "page_size": "100"}))
            yield from page["results"]

    def _checked(self, response: httpx.Response) -> Json:
        response.raise_for_status()
        answer: Json = response.json()
        return answer


def text_of(document: Json) -> dict[str, str]:
    """Return the text of a document, with its title as a field."""
    return {"title": document["title"], "content": document["content"][:MOST_CHARACTERS]}


def tag(paperless: Paperless, model: Model, number: int, threshold: float) -> list[str]:
    """Add the tags that the model is sure of, if paperless-ngx has them. Return their names."""
    document = paperless.document(number)
    numbers = {name: tag for tag, name in paperless.tags().items()}
    answer = model.classify(text=text_of(document), k=10, threshold=threshold)
    new = [one.label for one in answer.labels if one.label in numbers and numbers[one.label] not in document["tags"]]
    if new:
        paperless.set_tags(number, [*document["tags"], *(numbers[name] for name in new)])
    return new


def learn(paperless: Paperless, model: Model, since: str | None) -> int:
    """Learn reviewed documents with their tags, each state of a document once. Return how many were answered.

    Raises the first refusal, after all documents were sent.
    """
    names = paperless.tags()
    refused, learned = [], 0
    for answer in model.learn_many(labelled(paperless.reviewed(since), names)):
        if isinstance(answer, Refused):
            refused.append(answer)
        else:
            learned += 1
    if refused:
        raise ClientError(f"{len(refused)} documents were refused; the first one: {refused[0]}")
    return learned


def labelled(documents: Iterator[Json], names: dict[int, str]) -> Iterator[Labelled]:
    """Yield the documents that have tags.

    The key is the id, the time of the last change and a hash of the tags: a tag may get another name while the document
    stays unchanged.
    """
    for one in documents:
        tags = sorted(names[tag] for tag in one["tags"] if tag in names)
        if tags:
            digest = hashlib.blake2b("\0".join(tags).encode(), digest_size=8).hexdigest()
            key = f"{SOURCE}-{one['id']}-{one['modified']}-{digest}"
            yield Labelled(text=text_of(one), labels=tags, key=key, source=SOURCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tag the consumed document, or learn; 1 where that failed. The document stays as it is then."""
    parser = argparse.ArgumentParser(description="Tags for documents of paperless-ngx.")
    parser.add_argument("--learn", action="store_true", help="learn the documents that left the inbox")
    parser.add_argument("--since", help="with --learn: only documents modified since this date, such as 2026-11-24")
    given, _ = parser.parse_known_args(arguments)  # paperless-ngx also passes arguments, for older scripts
    paperless = Paperless(os.environ["PAPERLESS_URL"], os.environ["PAPERLESS_TOKEN"])
    try:
        with Client() as client:
            model = client.model(os.environ.get("ABOUND_MODEL", "default"))
            if given.learn:
                print(f"{learn(paperless, model, given.since)} documents learned")
            else:
                number = int(os.environ["DOCUMENT_ID"])
                added = tag(paperless, model, number, float(os.environ.get("ABOUND_THRESHOLD", "0.1")))
                print(f"document {number}: added {', '.join(added) or 'no tags'}")
    except (ClientError, httpx.HTTPError) as error:
        print(f"abound: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
