"""The store in memory answers as a real one does, command by command."""

import random
import socket
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest

from tests.simulation.keyspace import Keyspace, name_of
from tests.simulation.resp import encoded
from tests.support.fixtures import server  # noqa: F401
from tests.support.valkey import Server

SCRIPT = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return {1, ARGV[1], false}"
)

LARGEST = "18446744073709551615-18446744073709551615"
CLOSE = "local at = redis.call('XADD', KEYS[1], ARGV[1], 'e', 'x') redis.call('XSETID', KEYS[1], ARGV[2]) return at"
EXPIRES = "local left = redis.call('TTL', KEYS[1]) if left > 0 then return 1 end return left"


def commands(rng: random.Random) -> Iterator[tuple[Any, ...]]:
    """Commands on a few keys, in the forms in which the service uses them; ids of stream entries are given."""
    entry = 0
    while True:
        entry += rng.choice((0, 1, 1, 5))
        stream, key, field = rng.choice("st"), rng.choice("abcd"), rng.choice("xyz")
        value = str(rng.randint(0, 3))
        first, last = (f"{rng.randint(0, entry + 1)}-{rng.randint(0, 1)}" for _ in range(2))
        yield rng.choice(
            [
                ("GET", key), ("SET", key, value), ("SET", key, value, "NX"), ("SET", key, value, "XX", "GET"),
                ("DEL", key), ("EXISTS", key, "s"), ("MGET", key, "a"), ("STRLEN", key), ("HKEYS", "g"),
                ("HSET", "h", field, value, "w", value), ("HGET", "h", field), ("HGETALL", "g"), ("HDEL", "h", field),
                ("HSET", "g", "one", value),
                ("RPUSH", "l", value), ("LPUSH", "l", value), ("LRANGE", "l", 0, -1), ("LRANGE", "l", 1, 2),
                ("LREM", "l", 0, value), ("LTRIM", "l", 0, 6), ("EVAL", EXPIRES, 1, key), ("HMGET", "h", field, "w"),
                ("XADD", stream, f"{entry}-1", "e", value, "c", "d"), ("XLEN", stream), ("XRANGE", stream, first, last),
                ("XRANGE", stream, f"({first}", "+", "COUNT", 2), ("XREVRANGE", stream, "+", "-", "COUNT", 1),
                ("XREVRANGE", stream, "+", f"({first}", "COUNT", 1),
                ("XREAD", "COUNT", 2, "STREAMS", "s", "t", first, last), ("XTRIM", stream, "MINID", "=", first),
                ("HGET", "l", "x"), ("EVAL", SCRIPT, 1, key, value), ("PERSIST", key),
                ("PEXPIREAT", key, 1), ("UNLINK", "h"), ("XADD", stream, "0-1", "e", "f"), ("XINFO", "STREAM", stream),
                ("XADD", stream, "NOMKSTREAM", f"{entry}-2", "e", value), ("DEL", stream),
                ("XSETID", stream, first), ("XSETID", stream, LARGEST), ("XSETID", stream, f"{entry}-1"),
                ("XADD", stream, "0-0", "e", value), ("EVAL", CLOSE, 1, stream, f"{entry}-3", LARGEST),
                ("COPY", "s", "t", "REPLACE"), ("COPY", "h", "g", "REPLACE"),
                ("COPY", key, rng.choice("abcd"), "REPLACE"), ("COPY", key, "e"), ("COPY", "none", "a", "REPLACE"),
                ("PEXPIREAT", key, 10**13), ("PTTL", "none"), ("MEMORY", "USAGE", "none"),
            ]
        )  # fmt: skip


def parsed(reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


def answer(connection: socket.socket) -> Any:
    reader = hiredis.Reader()
    while (reply := reader.gets()) is False:
        reader.feed(connection.recv(65_536))
    return reply


def plain(reply: Any) -> Any:
    """A reply without what is not the same on purpose: the words of an error, and what XINFO tells of memory."""
    if isinstance(reply, hiredis.ReplyError):
        return "error", str(reply).split()[0]
    if isinstance(reply, list) and b"radix-tree-keys" in reply:
        said = dict(zip(reply[::2], reply[1::2], strict=True))
        return {
            name: said.get(name)
            for name in (b"length", b"last-generated-id", b"entries-added", b"max-deleted-entry-id", b"last-entry")
        }
    return reply


@pytest.mark.parametrize("seed", range(8))
def test_a_real_store_answers_the_same(server: Server, seed: int) -> None:  # noqa: F811
    rng = random.Random(seed)
    space = Keyspace()
    space.now_ms = 10
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.url.removeprefix("unix://"))
        for number, command in zip(range(1500), commands(rng), strict=False):
            words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
            connection.sendall(hiredis.pack_command(tuple(words)))
            real = answer(connection)
            assert plain(parsed(encoded(space.execute(words)))) == plain(real), (number, command)


def test_effects_lead_to_the_same() -> None:
    """What a store carries out anew when it starts is what it had."""
    rng = random.Random(1)
    space = Keyspace()
    space.now_ms = 10
    for _, command in zip(range(3000), commands(rng), strict=False):
        space.execute([word if isinstance(word, bytes) else str(word).encode() for word in command])
    again = Keyspace()
    again.replay([list(words) for words in space.effects])
    assert again.data.keys() == space.data.keys()
    for key, value in space.data.items():
        if hasattr(value, "ids"):
            assert [name_of(entry) for entry in again.data[key].ids] == [name_of(entry) for entry in value.ids]
            assert again.data[key].last == value.last
        else:
            assert again.data[key] == value
