"""Lineages of random logs of restores, imports and bases of history, compared with lists of what was learned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from abound.history import lineage
from abound.log.events import APPLY_VERSION, AdoptEvent, ConfigureEvent, Entry, element_of
from abound.log.stream import Element
from abound_core.types import Offset


class Story(NamedTuple):
    """A log, the recipes of its adopted states, and what each state has learned: numbers of entries, imported names."""

    log: list[Element]
    recipes: dict[str, dict[str, str]]
    learned: dict[str, list[int | str]]
    base: int | None


def end(number: int) -> Offset:
    return lineage.entry_end(Offset(number, 0, 0))


def story(rng: random.Random) -> Story:
    log: list[Element] = []
    recipes: dict[str, dict[str, str]] = {}
    learned: dict[str, list[int | str]] = {}
    states: list[list[int | str]] = [[]]
    others: list[int] = []
    replayed_from: dict[int, int] = {}
    for number in range(1, rng.randrange(4, 30)):
        event: Any = ConfigureEvent({})
        state = [*states[-1], number]
        if number > 1 and rng.random() < 0.25:
            since = max(0, *replayed_from, number - 1 - rng.randrange(3)) if replayed_from else number - 1
            name = f"state {number}"
            if rng.random() < 0.8:
                to = rng.randrange(since + 1)
                recipes[name], learned[name] = {"method": "restore", "to": str(end(to))}, states[to]
            else:
                recipes[name], learned[name] = {"method": "import"}, [name]
            event = AdoptEvent(name, name, str(end(since)), "digest")
            state = [*learned[name], *(one for one in others if one > since)]
            replayed_from[number] = since
        else:
            others.append(number)
        log.append(element_of(b"%d-0" % number, Entry(APPLY_VERSION, b"", 0, event)))
        states.append(state)
    base = rng.randrange(1, len(log))
    learned["base"] = states[base]
    is_replayed = any(since < base < number for number, since in replayed_from.items())
    learned["all"] = states[-1]
    return Story(log, recipes, learned, None if is_replayed or rng.random() < 0.5 else base)


@pytest.mark.parametrize("seed", range(300))
def test_a_lineage_is_what_the_present_state_has_learned(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = story(random.Random(seed))

    class FakeHistory:
        def __init__(self, *given: object) -> None:
            pass

        async def manifest(self) -> Any:
            base = SimpleNamespace(index="base", digest="digest")
            return None if told.base is None else SimpleNamespace(base=base, start=end(told.base))

    async def read(after: Offset, until: Offset) -> AsyncGenerator[list[Element]]:
        yield [one for one in told.log if after[:2] < Offset.of_entry(one[0])[:2] <= until[:2]]

    async def read_manifest(artifacts: object, keys: object, name: str) -> Any:
        return SimpleNamespace(recipe=told.recipes[name])

    monkeypatch.setattr(lineage, "History", FakeHistory)
    monkeypatch.setattr(lineage.state_files, "read_manifest", read_manifest)
    given: Any = None
    start, ranges = asyncio.run(lineage.trace_lineage(read, given, given, given, end(len(told.log))))
    found = [] if start is None else list(told.learned[start.name])
    adoptions = {int(name.removeprefix("state ")) for name in told.recipes}
    for one in ranges:
        found += [n for n in range(1, len(told.log) + 1) if n not in adoptions and one.after < end(n) <= one.until]
    assert found == told.learned["all"]
