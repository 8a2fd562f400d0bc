"""``abound keys`` and ``abound audit``: API keys and the audit log.

These commands access the store directly. They work before the service runs, and access to the store is enough: they
need no key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abound.cli.direct_store import DataDir, RedisUrl, load_settings, operator, with_store
from abound.cli.options import AsJson, Yes, confirm, error_console, print_json, print_result, print_rows
from abound_core.errors import InvalidInstance

if TYPE_CHECKING:
    from abound.security.key import CreatedKey
    from abound.store.client import Store

keys = typer.Typer(
    no_args_is_help=True, help="API keys. These commands access the store directly, so the service need not run."
)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Public id of the key, as shown by `abound keys list`.")]

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@keys.command("create")
def create_key(
    scopes: Annotated[
        list[str],
        typer.Option("--scope", "-s", help="classify, learn or admin (which includes both). May be repeated."),
    ],
    models: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Restrict the key to this model. May be repeated.")
    ] = None,
    description: Annotated[str, typer.Option("--description", "-d", help="Who uses the key, for people to read.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", help="Lifetime: 90s, 30m, 12h or 30d.  [default: unlimited]")
    ] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="Rate limit in instances, such as 1000/second.")] = None,
    source_rate: Annotated[
        str | None, typer.Option("--source-rate", help="Rate limit for learning with one source, such as 100/minute.")
    ] = None,
    new_store: Annotated[
        bool, typer.Option("--new-store", help="If the data directory has no store yet, create one there.")
    ] = False,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once, on standard output. The store keeps only its hash.

    As soon as a key exists, every request needs one, and the service may listen on addresses that others can reach.
    """
    from abound.security import key_store as store_keys
    from abound.security.audit import audited
    from abound.security.key import KeyTerms

    terms = KeyTerms(scopes, models or None, description, _parse_duration(expires, "--expires"), rate, source_rate)
    try:
        terms.check()
    except InvalidInstance as error:
        hint = {"seconds": "expires", "source_rate": "source-rate"}.get(error.field, error.field.removesuffix("s"))
        raise typer.BadParameter(str(error), param_hint=f"--{hint}") from error

    async def work(store: Store) -> CreatedKey:
        async with audited(store, operator(), "key.create", scopes=list(scopes), models=models or None) as details:
            made = await store_keys.create(store, terms)
            details["key"] = made.key.id
        await store_keys.check_copied(store, made.key, f"the key {made.key.id} is created")
        return made

    _print_new_key(with_store(load_settings(data_dir, redis_url), work, make=new_store), as_json)


@keys.command("list")
def list_keys(data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List all keys, oldest first, without their secrets."""
    from abound.security.key_store import all_keys

    found = with_store(load_settings(data_dir, redis_url), all_keys)
    if as_json:
        print_json({"keys": [_to_public(one.key, one.state, one.used) for one in found]})
        return
    rows = []
    for one in found:
        key = one.key
        models = "all" if key.models is None else ", ".join(key.models)
        times = (_format_utc(key.expires), _format_utc(one.used))
        rows.append((key.id, one.state, ", ".join(key.scopes), models, *times, key.rate or "-", key.description))
    columns = ("id", "state", "scopes", "models", "expires", "last used", "rate", "description")
    print_rows(columns, rows, whole=("id", "state"))


@keys.command("revoke")
def revoke_key(key_id: KeyId, data_dir: DataDir = None, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """Revoke a key permanently. It takes effect within about a second."""
    from abound.security import key_store as store_keys
    from abound.security.audit import audited

    async def work(store: Store) -> dict[str, Any]:
        async with audited(store, operator(), "key.revoke", key=key_id):
            revoked = await store_keys.revoke(store, key_id)
        await store_keys.check_copied(store, revoked, f"the key {key_id} is revoked")
        return _to_public(revoked, "revoked", None)

    revoked = with_store(load_settings(data_dir, redis_url), work)
    print_result(revoked, f"{key_id} is revoked", as_json)


@keys.command("rotate")
def rotate_key(
    key_id: KeyId,
    grace: Annotated[str, typer.Option("--grace", help="How long the old key stays valid: 0, 90s, 30m, 12h.")] = "1h",
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a key with the same permissions, and end the old one after a grace period."""
    from abound.security import key_store as store_keys
    from abound.security.audit import audited

    seconds = _parse_duration(grace, "--grace") or 0.0

    async def work(store: Store) -> CreatedKey:
        async with audited(store, operator(), "key.rotate", key=key_id, grace=seconds) as details:
            made = await store_keys.rotate(store, key_id, seconds)
            details["by"] = made.key.id
        await store_keys.check_copied(store, made.key, f"the key {key_id} is rotated")
        return made

    _print_new_key(with_store(load_settings(data_dir, redis_url), work), as_json)


@keys.command("clear")
def clear_keys(
    yes: Yes = False,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete all keys. On the loopback interface, or with `--insecure`, requests then need no key.

    On any other address every request is refused, and no replica starts, until there is a key.
    """
    from abound.security import key_store as store_keys
    from abound.security.audit import audited

    confirm("Delete all keys, so that requests on loopback, or with --insecure, need no key?", yes)

    async def work(store: Store) -> None:
        async with audited(store, operator(), "key.clear"):
            await store_keys.clear(store)

    with_store(load_settings(data_dir, redis_url), work)
    print_result({"cleared": True}, "all keys are deleted", as_json)


def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of acts.")] = 100,
    before: Annotated[str | None, typer.Option("--before", help="Only acts older than the act with this id.")] = None,
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log: what was done to models, jobs and keys, by whom and from where, newest first."""
    import msgspec

    from abound.security.audit import newest_acts

    if before is not None and re.fullmatch(r"\d{1,15}-\d{1,15}", before, re.ASCII) is None:
        raise typer.BadParameter("is not the id of an act; see: abound audit --json", param_hint="--before")
    found = with_store(load_settings(data_dir, redis_url), lambda store: newest_acts(store, limit, before))
    if as_json:
        print_json({"acts": [msgspec.structs.asdict(one) for one in found]})
        return
    rows = []
    for one in found:
        about = " ".join(f"{name}={value}" for name, value in one.details.items())
        rows.append((_format_utc(one.at), one.action, one.outcome, one.key or "-", one.address, about))
    print_rows(("when", "action", "outcome", "key", "from", "about"), rows, whole=("action", "outcome", "key"))


def _print_new_key(made: CreatedKey, as_json: bool) -> None:
    if as_json:
        print_json(_to_public(made.key, "valid", None) | {"key": made.secret})
        return
    console = error_console()
    console.print(f"key {made.key.id}: {', '.join(made.key.scopes)}", markup=False)
    console.print(
        "The key is shown only once. Clients read it from ABOUND_KEY; commands also read the file that"
        " ABOUND_KEY_FILE names."
    )
    typer.echo(made.secret)


def _to_public(key: Any, state: str, used: float | None) -> dict[str, Any]:
    import msgspec

    plain = msgspec.structs.asdict(key) | {"state": state, "used": used}
    del plain["digest"]
    return plain


def _parse_duration(text: str | None, option: str) -> float | None:
    """Return a duration like ``30m`` in seconds. Raises typer.BadParameter if it is malformed."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text, re.ASCII)
    if match is None:
        raise typer.BadParameter("must be a duration like 90s, 30m, 12h or 30d", param_hint=option)
    return float(int(match[1]) * UNITS[match[2]])


def _format_utc(at: float | None) -> str:
    import time

    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))
