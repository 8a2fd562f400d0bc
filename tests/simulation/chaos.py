"""What goes wrong in a history, and when."""

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.hosts import Host, ReplicaHost
from tests.simulation.network import Network
from tests.simulation.server import Store

MESSAGE_FAULTS = ("cut before", "cut behind", "cut after", "pieces", "crash at reply", "answer lost", "refuse")
REFUSALS = (
    "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF Errors writing to the AOF file: No space left on device",
)


class Chaos:
    """Chooses for each seed what can go wrong, then lets it go wrong until ``heal``."""

    def __init__(self, seed: int, network: Network, hosts: list[Host], faults: Sequence[str] | None = None) -> None:
        self.rng = random.Random(f"chaos {seed}")
        self._network = network
        self._hosts = hosts
        self._zombies: list[Store] = []
        self._is_over = False
        self.n_set_back = 0
        rng = self.rng
        every: list[Callable[[], None]] = [
            self._cut, self._cut_all, self._kill, self._fuse, self._pause, self._slow, self._stop,
            self._kill_store, self._lose_power, self._pause_store, self._fail_over, self._refuse, self._set_clock,
            self._demote,
        ]  # fmt: skip
        self._actions = rng.sample(every, rng.randint(1, len(every)))
        if faults is not None:
            self._actions = [getattr(self, fault) for fault in faults]
        self._pause_between = rng.choice((0.06, 0.25, 0.6))
        for fault in MESSAGE_FAULTS:
            if rng.random() < 0.3:
                network.rates[fault] = rng.choice((0.001, 0.005, 0.02))
        network.base = rng.choice((0.0002, 0.002, 0.01))
        network.fsync = rng.choice((0.0005, 0.005, 0.03))

    @property
    def _store(self) -> Store:
        assert self._network.store is not None
        return self._network.store

    async def rage(self, least: float, most: float, are_through: Callable[[], bool]) -> None:
        """Let things go wrong until those who work are through, between ``least`` and ``most`` seconds."""
        loop = self._network.loop
        begin = loop.time()
        while loop.time() < begin + least or (loop.time() < begin + most and not are_through()):
            await asyncio.sleep(self.rng.random() * 2 * self._pause_between)
            action = self.rng.choice(self._actions)
            self._network.note("fault", action.__name__)
            action()

    def heal(self) -> None:
        self._is_over = True
        network = self._network
        network.rates.clear()
        network.slow.clear()
        network.base, network.fsync = 0.0005, 0.0005
        for zombie in self._zombies:
            zombie.end()
        self._zombies.clear()
        store = self._store
        store.refusing, store.lag = None, 0.0
        if not store.is_up:
            store.start()
        store.process.resume()
        for host in self._hosts:
            if host.process is not None:
                host.process.fuse = None
                host.process.resume()
        network.note("heal", "")

    def _later(self, call: Callable[[], None], seconds: float) -> None:
        def unless_over() -> None:
            if not self._is_over:
                call()

        self._network.loop.world.call(unless_over, after=seconds)

    def _host(self) -> Host:
        return self.rng.choice(self._hosts)

    def _cut(self) -> None:
        wires = self._network.wires_of()
        if wires:
            self.rng.choice(wires).cut(silent=self.rng.random() < 0.2)

    def _cut_all(self) -> None:
        process = self._host().process
        if process is not None:
            for wire in self._network.wires_of(process):
                wire.cut(silent=self.rng.random() < 0.2)

    def _slow(self) -> None:
        process = self._host().process
        if process is not None:
            self._network.slow[process] = self._network.loop.time() + self.rng.random() * 2

    def _kill(self) -> None:
        self._host().kill()

    def _fuse(self) -> None:
        process = self._host().process
        if process is not None:
            process.fuse = process.steps + self.rng.randint(1, 300)

    def _pause(self) -> None:
        process = self._host().process
        if process is not None:
            process.pause()
            self._later(process.resume, self.rng.random() * 2)

    def _stop(self) -> None:
        host = self._host()
        if isinstance(host, ReplicaHost):
            host.stop()

    def _kill_store(self) -> None:
        self._die(power=False)

    def _lose_power(self) -> None:
        self._die(power=True)

    def _die(self, power: bool) -> None:
        store = self._store
        if store.is_up:
            store.die(power)
            self._later(lambda: store.is_up or store is not self._store or store.start(), self.rng.random())

    def _pause_store(self) -> None:
        store = self._store
        store.process.pause()
        self._later(store.process.resume, self.rng.random() * 1.5)

    def _fail_over(self) -> None:
        store = self._store
        if not store.can_fail_over:
            return
        if self.rng.random() < 0.5 and store.lag == 0.0:
            store.lag = self.rng.random()
            self._later(self._fail_over, self.rng.random())
            return
        policy = store.policy if self.rng.random() < 0.7 else self.rng.choice(("always", "everysec"))
        self._promote(store, policy)
        store.process.resume()
        self._zombies.append(store)
        if self.rng.random() < 0.6:
            self._end(store)
        else:
            self._later(lambda: self._end(store), self.rng.random())

    def _promote(self, old: Store, policy: str) -> Store:
        """A copy of a store in its place, with a clock of its own."""
        new = old.fail_over(policy, self.rng.choice((0.0, 0.0, -5.0, 5.0)))
        self.n_set_back += new.skew < old.skew - 1.0
        return new

    def _demote(self) -> None:
        """A failover after which the old primary copies the new one, and keeps its connections for a while."""
        old = self._store
        if not old.can_fail_over:
            return
        new = self._promote(old, old.policy)
        self._zombies.append(old)

        def demote() -> None:
            if old in self._zombies and old.process.alive:
                old.process.resume()
                old.demote(self._store if self._store.is_up else new)

        self._later(demote, self.rng.random() * 0.1)
        self._later(lambda: self._end(old), 0.5 + self.rng.random() * 2)

    def _end(self, store: Store) -> None:
        if store in self._zombies:
            self._zombies.remove(store)
            store.end()

    def _refuse(self) -> None:
        store = self._store
        store.refusing = self.rng.choice(REFUSALS)

        def again() -> None:
            store.refusing = None

        self._later(again, self.rng.random())

    def _set_clock(self) -> None:
        seconds = self.rng.choice((-100.0, -1.0, 1.0, 30.0))
        self.n_set_back += seconds < -1.0
        self._store.skew += seconds
