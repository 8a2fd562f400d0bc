"""The search for labels: a copy of the labels and names of a model, folded: without case and accents.

The copy lies in pages of 1,024 labels, each one string. It takes about the memory of the labels and their names. A
page is made when it is first read after one of its labels was added or registered.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncIterator
from difflib import get_close_matches
from weakref import WeakKeyDictionary

from abound.api.schemas.labels import details_from
from abound.tasks import TimeSlice
from abound_core.model.label_details import PAGE
from abound_core.model.live_model import LiveModel

FIELD, END = "\x1f", "\0"  # before the label and before its name; between labels
MOST_NEAR = 500  # names that are compared for each half of an unknown label
MOST_KEPT = 100  # unknown labels whose nearest labels are kept: requests repeat them

_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+")

_pages: WeakKeyDictionary[LiveModel, list[tuple[int, str]]] = WeakKeyDictionary()
_nearest: WeakKeyDictionary[LiveModel, dict[tuple[str, int], str]] = WeakKeyDictionary()


def fold(text: str) -> str:
    """Return a text without case and accents, and with compatible characters as one.

    >>> fold("Caf\u00e9"), fold("STRASSE") == fold("stra\u00dfe")
    ('cafe', True)
    """
    text = text.casefold()
    return text if text.isascii() else _ACCENTS.sub("", unicodedata.normalize("NFKD", text))


def name_of(live: LiveModel, class_id: int) -> str:
    return details_from(live.details.get(class_id)).name or ""


def _page(live: LiveModel, pages: list[tuple[int, str]], at: int) -> str:
    first, end = at * PAGE, min(live.labels.n_ids, (at + 1) * PAGE)
    if at == len(pages):
        pages.append((0, ""))
    if pages[at][0] != end - first or at in live.details.changed_pages:
        live.details.changed_pages.discard(at)
        rows = [""] * (end - first)  # of what is an old name of another label
        for one in range(first, end):
            if live.changes.of(one) == one:
                rows[one - first] = f"{FIELD}{live.label(one)}{FIELD}{name_of(live, one)}".replace(END, " ")
        pages[at] = end - first, fold(END.join(rows))
    return pages[at][1]


async def find_labels(live: LiveModel, *parts: str) -> AsyncIterator[list[tuple[int, str]]]:
    """Yield class ids and folded rows of the labels that contain these folded parts, by id, in slices."""
    pages, pace, at = _pages.setdefault(live, []), TimeSlice(), 0
    while at * PAGE < live.labels.n_ids:
        page = _page(live, pages, at)
        if all(part in page for part in parts):
            rows = enumerate(page.split(END), start=at * PAGE)
            yield [(class_id, row) for class_id, row in rows if row and all(part in row for part in parts)]
        if pace.due():
            await pace.pause()
        at += 1


async def nearest_hint(live: LiveModel, label: str) -> str:
    """Return a hint with known labels that look like this one, or whose name does; "" if there are none.

    They contain a half of it: where one letter is wrong, the other half is right.
    """
    kept, key = _nearest.setdefault(live, {}), (label, live.labels.n_ids)
    if key in kept:
        return kept[key]
    text = fold(label)
    half = len(text) // 2
    near: dict[str, int] = {}
    for part in {text[:half], text[half:]} - {""}:
        async for rows in find_labels(live, part):
            near.update((field, class_id) for class_id, row in rows for field in row.split(FIELD)[1:] if field)
            if len(near) > MOST_NEAR:
                break
    if len(kept) >= MOST_KEPT:
        kept.clear()
    found = dict.fromkeys(repr(live.label(near[one])) for one in get_close_matches(text, near))
    kept[key] = f"; did you mean {' or '.join(found)}?" if found else ""
    return kept[key]
