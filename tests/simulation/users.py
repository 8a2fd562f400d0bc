"""Applications that learn and read, and try again."""

import asyncio
import contextlib
from typing import Any

from abound.replica.replica import Replica
from abound_core.config import DecideConfig, ModelConfig
from abound_core.errors import (
    Conflict,
    InvalidInstance,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    StoreUnavailable,
    TooLarge,
    UnknownModel,
)
from abound_core.types import START, Offset
from tests.simulation.hosts import Gone, ReplicaHost
from tests.simulation.loop import here
from tests.simulation.network import Network
from tests.simulation.requests import (
    DONE,
    REFUSED,
    UNKNOWN,
    Attempt,
    Author,
    Read,
    Request,
    changes_labels,
    told,
    vector_of,
)

PATIENCE = 2.5
ATTEMPTS = 4
CREATED = {"news": ModelConfig(update="sls", implicit=0.1), "mail": ModelConfig(update="sls", decide=DecideConfig())}
"""Models that somebody creates, beside the one that is always there."""


class Users:
    """All applications of a history; ``requests`` and ``reads`` are what they asked for and were told."""

    def __init__(self, author: Author, hosts: list[ReplicaHost], network: Network) -> None:
        self.author = author
        self.reads: list[Read] = []
        self._hosts = hosts
        self._network = network
        self._rng = author.rng
        self._models = ["default", "default"]
        self._is_late = False

    @property
    def requests(self) -> list[Request]:
        return self.author.requests

    def hurry(self) -> None:
        self._is_late = True

    def _some_host(self) -> ReplicaHost:
        """Where a request goes: as a rule to one that is there."""
        there = self._there()
        return self._rng.choice(there if there and self._rng.random() < 0.85 else self._hosts)

    async def _wait_for_one(self) -> None:
        """As a rule nothing is sent while no replica is there at all."""
        until = self._network.loop.time() + 1.0
        while self._network.loop.time() < until and self._rng.random() < 0.99:
            if self._there():
                return
            await asyncio.sleep(0.05)

    def _there(self) -> list[ReplicaHost]:
        return [host for host in self._hosts if host.is_up and host.replica is not None]

    async def work(self, n: int) -> None:
        """An application: learns ``n`` times and reads in between."""
        rng = self._rng
        for _ in range(n):
            if self._is_late:
                return
            await asyncio.sleep(rng.random() * rng.choice((0.01, 0.1, 0.4)))
            await self._wait_for_one()
            if rng.random() < 0.1:
                await self._create()
            if rng.random() < 0.3:
                await self._come_and_go()
            request = self.author.request(rng.choice(self._models), self._old_key())
            if request.keyed and rng.random() < 0.15:  # something on the way has sent it twice
                await asyncio.gather(self.learn(request), self.learn(request))
            else:
                await self.learn(request)
            await self._read(request)
            if rng.random() < 0.1:
                await self._mark()

    async def _create(self) -> None:
        name = self._rng.choice(tuple(CREATED))
        if name not in self._models:
            self._models.append(name)
        host = self._some_host()
        with contextlib.suppress(Gone, NotReady, OutcomeUnknown, StoreUnavailable, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await host.ask(lambda replica: replica.models.create(name, CREATED[name], 1.0))

    async def _come_and_go(self) -> None:
        """A model that nobody learns with comes or goes, so that the catalog grows."""
        host = self._some_host()

        async def change(replica: Replica) -> None:
            if "scratch" in replica.models.names():
                await replica.models.delete("scratch", 1.0)
            else:
                await replica.models.create("scratch", ModelConfig(), 1.0)

        with contextlib.suppress(
            Conflict, Gone, NotReady, OutcomeUnknown, StoreUnavailable, TimeoutError, UnknownModel
        ):
            async with asyncio.timeout(PATIENCE):
                await host.ask(change)

    def _old_key(self) -> str | None:
        """Now and then a key that came before, for another body."""
        keyed = [one.drafts[0].key for one in self.requests[-5:] if one.keyed and len(one.drafts) == 1]
        return self._rng.choice(keyed) if keyed and self._rng.random() < 0.05 else None

    async def learn(self, request: Request) -> None:
        """Send a request until there is an answer: one with a key again and again, another one once."""
        for _ in range(ATTEMPTS if request.keyed else 1):
            attempt = await self.attempt(request, self._some_host())
            if attempt.outcome == DONE or attempt.why == "conflict":
                return
            await asyncio.sleep(self._rng.random() * 0.25)

    async def attempt(self, request: Request, host: ReplicaHost) -> Attempt:
        """Send a request to one replica."""
        attempt = Attempt(host.name)
        request.attempts.append(attempt)

        async def learn(replica: Replica) -> Any:
            replica.models.trusted(request.model)
            return await replica.learn(request.model, request.drafts, request.wait, 2.0)  # type: ignore[arg-type]

        try:
            async with asyncio.timeout(PATIENCE):
                attempt.learned = await host.ask(learn)
            attempt.outcome = DONE
            refusals = [one.refused for one in attempt.learned if one.refused is not None]
            if refusals and len(refusals) == len(attempt.learned):
                attempt.outcome, attempt.learned, attempt.why = REFUSED, None, "conflict"
        except (NotReady, Overloaded, StoreUnavailable, TooLarge, UnknownModel) as error:
            attempt.outcome, attempt.why = REFUSED, str(error)
        except InvalidInstance as error:
            attempt.outcome, attempt.why = REFUSED, "conflict" if error.field == "key" else str(error)
        except Gone as error:
            attempt.outcome, attempt.why = UNKNOWN if error.reached else REFUSED, str(error)
        except (OutcomeUnknown, TimeoutError) as error:
            attempt.outcome, attempt.why = UNKNOWN, str(error)
        self._network.note(
            attempt.outcome, f"request {request.number} {host.name}", told(attempt.learned or ()) or attempt.why
        )
        return attempt

    async def _read(self, request: Request) -> None:
        """Read what was acknowledged, somewhere."""
        done = [attempt for attempt in request.attempts if attempt.outcome == DONE and attempt.learned is not None]
        if not done or changes_labels(request.events[0][0]) or self._rng.random() < 0.3:
            return
        assert done[-1].learned is not None
        learned, event = done[-1].learned[0], request.events[0][0]
        host = self._some_host()
        asked = learned.offset if self._rng.random() < 0.7 else START

        async def read(replica: Replica) -> tuple[Offset, bool, str, str, float, int]:
            replica.models.trusted(request.model)
            await replica.wait_for(request.model, asked, 1.0)
            model = replica.models.trusted(request.model)
            model.check_serving()  # what is active can be answered with
            live = model.live
            live.rank(vector_of(event), 1)
            seen, version = live.features.find(b"e%d" % event) >= 0, live.serving.version
            return model.offset, seen, version, model.incarnation, self._network.loop.time(), here().pid

        try:
            async with asyncio.timeout(PATIENCE):
                got, *found = await host.ask(read)
        except (Gone, NotReady, InvalidInstance, UnknownModel, StoreUnavailable, TimeoutError):
            return
        seen, version, incarnation, now, process = found
        model = request.model
        self.reads.append(Read(host.name, asked, got, event, seen, model, version, incarnation, now, process))

    async def _mark(self) -> None:
        host = self._some_host()
        token = f"mark{len(self.requests)}"
        try:
            async with asyncio.timeout(PATIENCE):
                await host.ask(lambda replica: replica.mark("default", token, 1.0))
        except (Gone, NotReady, OutcomeUnknown, Overloaded, UnknownModel, StoreUnavailable, TimeoutError):
            return
