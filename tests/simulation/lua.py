"""Scripts, by a real Lua."""

from collections.abc import Callable
from functools import cache
from typing import Any

import lupa.lua51 as lupa

from tests.simulation.resp import Refused, Status

DECODE = b"""for name, value in string.gmatch(text, '"([%w_]+)":"([^"]*)"') do found[name] = value end"""
"""As much of JSON as the scripts of a history read: an object's texts."""


def run_script(execute: Callable[[list[bytes]], Any], source: bytes, keys: list[bytes], arguments: list[bytes]) -> Any:
    """Run a script, whose commands are carried out by ``execute``; its reply."""
    lua, function = _compiled(source)

    def call(*words: Any) -> Any:
        reply = execute([_word(word) for word in words])
        if isinstance(reply, Refused):
            raise reply
        return _to_lua(lua, reply)

    try:
        reply = function(call, lua.table_from(keys), lua.table_from(arguments))
    except lupa.LuaError as error:
        raise Refused(f"ERR {' '.join(str(error).split())}") from None
    return _from_lua(reply)


def collect() -> None:
    _runtime().gccollect()


@cache
def _runtime() -> Any:
    return lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)


@cache
def _compiled(source: bytes) -> tuple[Any, Any]:
    lua = _runtime()
    head = b"return function(call, KEYS, ARGV) local redis = {call = call, pcall = call} "
    head += b"local cjson = {decode = function(text) local found = {} " + DECODE + b" return found end} "
    head += b"redis.error_reply = function(text) return {err = text} end "
    head += b"redis.status_reply = function(text) return {ok = text} end local server = redis "
    return lua, lua.execute(head + source + b"\nend")


def _word(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, float):
        return b"%d" % word if word == int(word) else repr(word).encode()
    if isinstance(word, int):
        return b"%d" % word
    raise Refused("ERR Lua redis lib command arguments must be strings or integers")


def _to_lua(lua: Any, reply: Any) -> Any:
    if reply is None or type(reply) is object:
        return False
    if isinstance(reply, Status):
        return lua.table_from({b"ok": str(reply).encode()})
    if isinstance(reply, list):
        return lua.table_from([_to_lua(lua, part) for part in reply])
    return reply


def _from_lua(reply: Any) -> Any:
    if reply is None or reply is False:
        return None
    if reply is True:
        return 1
    if isinstance(reply, float):
        return int(reply)
    if lupa.lua_type(reply) == "table":
        if reply[b"err"] is not None:
            raise Refused(reply[b"err"].decode())
        if reply[b"ok"] is not None:
            return Status(reply[b"ok"].decode())
        return [_from_lua(reply[at]) for at in range(1, len(reply) + 1)]
    return reply
