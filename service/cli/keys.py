"""``abound keys`` and ``abound audit``: who may do what, and who did what.

They ask the store itself, so they work before the service runs, and whoever can reach the store needs no key.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from abound.core.errors import InvalidInstance
from abound.service.cli.options import AsJson, error_console, print_json

if TYPE_CHECKING:
    from abound.service.security.audit import Actor
    from abound.service.security.key import Made
    from abound.service.store.client import Store

T = TypeVar("T")

keys = typer.Typer(no_args_is_help=True, help="Who may do what. Asks the store itself, also before the service runs.")

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the service has its embedded store.  [default: ./data]")
]
RedisUrl = Annotated[
    str | None, typer.Option("--redis-url", help="The Valkey or Redis of the service, if it has its own.")
]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Public id of the key, as `abound keys list` shows it.")]

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@keys.command("create")
def create_key(
    scopes: Annotated[
        list[str],
        typer.Option("--scope", "-s", help="classify, learn or admin (includes both). May be given several times."),
    ],
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Only for this model. May be given several times.")
    ] = None,
    description: Annotated[str, typer.Option("--description", "-d", help="Who has it, for people.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="After so long: 90s, 30m, 12h or 30d.")] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Instances that it may send: 1000/second.")] = None,
    source_rate: Annotated[
        str | None, typer.Option("--source-rate", help="Instances to learn with one source: 100/minute.")
    ] = None,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown this once, on standard output; the store has only its hash.

    As soon as there is a key, every request must show one, and the service may listen where others reach it.
    """
    from abound.service.security import key_store as store_keys
    from abound.service.security.audit import act
    from abound.service.security.key import Terms

    terms = Terms(scopes, models or None, description, _seconds(expires, "--expires"), rate, source_rate)
    try:
        terms.check()
    except InvalidInstance as error:
        hint = {"seconds": "expires", "source_rate": "source-rate"}.get(error.field, error.field.removesuffix("s"))
        raise typer.BadParameter(str(error), param_hint=f"--{hint}") from error

    async def work(store: Store) -> Made:
        async with act(store, operator(), "key.create", scopes=list(scopes), models=models or None) as details:
            made = await store_keys.create(store, terms)
            details["key"] = made.key.id
            return made

    _show_made(_with_store(work, data_dir, redis_url, make=True), as_json)


@keys.command("list")
def list_keys(data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """All keys, oldest first, without their secrets."""
    from rich.console import Console
    from rich.table import Table

    from abound.service.security.key_store import listed

    found = _with_store(listed, data_dir, redis_url)
    if as_json:
        print_json({"keys": [_plain(one.key, one.state, one.used) for one in found]})
        return
    table = Table("id", "state", "scopes", "models", "expires", "last used", "rate", "description", box=None)
    for one in found:
        key = one.key
        models = "all" if key.models is None else ", ".join(key.models)
        times = (_time(key.expires), _time(one.used))
        table.add_row(key.id, one.state, ", ".join(key.scopes), models, *times, key.rate or "-", key.description)
    Console(highlight=False, markup=False).print(table)


@keys.command("revoke")
def revoke_key(key_id: KeyId, data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Take a key back for good. It opens nothing any more within about a second."""
    from abound.service.security import key_store as store_keys
    from abound.service.security.audit import act

    async def work(store: Store) -> dict[str, Any]:
        async with act(store, operator(), "key.revoke", key=key_id) as details:
            revoked = await store_keys.revoke(store, key_id)
            details["copied"] = revoked.copied
        revoked.check()
        return _plain(revoked.key, "revoked", None)

    revoked = _with_store(work, data_dir, redis_url)
    if as_json:
        print_json(revoked)
    else:
        typer.echo(f"{key_id} is revoked")


@keys.command("rotate")
def rotate_key(
    key_id: KeyId,
    grace: Annotated[str, typer.Option("--grace", help="How long the old key lives on: 0, 90s, 30m, 12h.")] = "1h",
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key that may do the same, and end the old one after a grace."""
    from abound.service.security import key_store as store_keys
    from abound.service.security.audit import act

    seconds = _seconds(grace, "--grace") or 0.0

    async def work(store: Store) -> Made:
        async with act(store, operator(), "key.rotate", key=key_id, grace=seconds) as details:
            made = await store_keys.rotate(store, key_id, seconds)
            details["by"] = made.key.id
            return made

    _show_made(_with_store(work, data_dir, redis_url), as_json)


@keys.command("clear")
def clear_keys(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take out all keys: requests need none from then on, and only loopback is listened on."""
    from abound.service.security import key_store as store_keys
    from abound.service.security.audit import act

    if not yes:
        typer.confirm("Take out all keys, so that everybody who reaches the service may do everything?", abort=True)

    async def work(store: Store) -> None:
        async with act(store, operator(), "key.clear"):
            await store_keys.clear(store)

    _with_store(work, data_dir, redis_url)
    if as_json:
        print_json({"cleared": True})
    else:
        typer.echo("there is no key any more")


def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 100,
    before: Annotated[str | None, typer.Option("--before", help="Only acts older than this id.")] = None,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """What was done to models, jobs and keys, by whom and from where: newest first."""
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from abound.service.security.audit import acts

    if before is not None and re.fullmatch(r"\d{1,15}-\d{1,15}", before, re.ASCII) is None:
        raise typer.BadParameter("is no id of an act", param_hint="--before")
    found = _with_store(lambda store: acts(store, limit, before), data_dir, redis_url)
    if as_json:
        print_json({"acts": [msgspec.structs.asdict(one) for one in found]})
        return
    table = Table("when", "action", "outcome", "key", "from", "about", box=None)
    for one in found:
        about = " ".join(f"{name}={value}" for name, value in one.details.items())
        table.add_row(_time(one.at), one.action, one.outcome, one.key or "-", one.address, about)
    Console(highlight=False, markup=False).print(table)


def _with_store(
    work: Callable[[Store], Awaitable[T]], data_dir: Path | None, redis_url: str | None, make: bool = False
) -> T:
    """What ``work`` makes of the store, which is started for it where it does not run."""
    from abound.service.processes.embedded_store import reached
    from abound.service.settings import Settings
    from abound.service.store.client import Store, StoreParams

    settings = Settings.load(data_dir=data_dir, redis_url=redis_url)

    async def run(url: str) -> T:
        store = Store(url, settings.group(StoreParams))
        try:
            return await work(store)
        finally:
            await store.close()

    with reached(settings, make) as url, quiet():
        return asyncio.run(run(url))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines of a service: what comes of a command is its output."""
    import structlog

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


def operator() -> Actor:
    """Who runs the command."""
    from abound.service.security.audit import Actor

    user = "unknown"
    with suppress(OSError, KeyError):  # a user id that has no name
        user = getpass.getuser()
    return Actor(None, f"{user}@{socket.gethostname()}")


def _show_made(made: Made, as_json: bool) -> None:
    if as_json:
        print_json(_plain(made.key, "valid", None) | {"key": made.secret})
        return
    console = error_console()
    console.print(f"key {made.key.id}: {', '.join(made.key.scopes)}", markup=False)
    console.print("This is the only time that it is shown. Clients read it from ABOUND_KEY or ABOUND_KEY_FILE.")
    typer.echo(made.secret)


def _plain(key: Any, state: str, used: float | None) -> dict[str, Any]:
    import msgspec

    plain = msgspec.structs.asdict(key) | {"state": state, "used": used}
    del plain["digest"]
    return plain


def _seconds(text: str | None, option: str) -> float | None:
    """``30m`` in seconds; typer.BadParameter when it is no time."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text, re.ASCII)
    if match is None:
        raise typer.BadParameter("must be a time like 90s, 30m, 12h or 30d", param_hint=option)
    return float(int(match[1]) * UNITS[match[2]])


def _time(at: float | None) -> str:
    import time

    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))
