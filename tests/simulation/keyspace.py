"""What the store holds, and the commands on it, without time, connections or disks.

A command that changes something leaves its **effects**: commands that lead to the same change whenever they are
carried out, with the ids and times that were given. A store that starts again carries the effects out anew.

The commands are those that the service uses, in the forms in which it uses them; any other fails loudly.
"""

from __future__ import annotations

import fnmatch
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from tests.simulation.lua import run_script
from tests.simulation.resp import NO_LIST, OK, Refused, Status

Words = list[bytes]
Id = tuple[int, int]
LAST: Id = (2**64 - 1, 2**64 - 1)

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Stream:
    """Elements by id, in order."""

    __slots__ = ("added", "fields", "ids", "last")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.fields: list[Words] = []
        self.last: Id = (0, 0)
        self.added = 0

    def copy(self) -> Stream:
        new = Stream()
        new.ids, new.fields = list(self.ids), list(self.fields)
        new.last, new.added = self.last, self.added
        return new

    def between(self, first: Id, last: Id) -> range:
        return range(bisect_left(self.ids, first), bisect_right(self.ids, last))

    def element(self, at: int) -> list[Any]:
        return [name_of(self.ids[at]), self.fields[at]]


class Keyspace:
    """The data, what the clock says, and since they were emptied last: what changed, and streams that have grown."""

    def __init__(self) -> None:
        self.data: dict[bytes, Any] = {}
        self.expiry: dict[bytes, int] = {}
        self.now_ms = 0
        self.effects: list[Words] = []
        self.touched: set[bytes] = set()

    def execute(self, words: Words) -> Any:
        command = COMMANDS.get(words[0].upper())
        if command is None:
            raise NotImplementedError(f"the store in memory does not know {words[0]!r}")
        try:
            return command(self, words)
        except Refused as error:
            return error

    def replay(self, effects: list[Words]) -> None:
        """Carry out effects, at a time at which nothing expires."""
        now, self.now_ms = self.now_ms, 0
        for words in effects:
            self.execute(words)
        self.effects.clear()
        self.touched.clear()
        self.now_ms = now

    def get(self, key: bytes, kind: type) -> Any:
        """The value of a key, None when there is none; Refused when it is of another kind."""
        at = self.expiry.get(key)
        if at is not None and at <= self.now_ms:
            self.drop(key)
            self.effects.append([b"DEL", key])
        value = self.data.get(key)
        if value is not None and type(value) is not kind:
            raise Refused(WRONG_TYPE)
        return value

    def make(self, key: bytes, kind: type) -> Any:
        value = self.get(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def exists(self, key: bytes) -> bool:
        value = self.data.get(key)
        return value is not None and self.get(key, type(value)) is not None

    def drop(self, key: bytes) -> bool:
        self.expiry.pop(key, None)
        return self.data.pop(key, None) is not None

    def did(self, *words: bytes) -> None:
        self.effects.append(list(words))


def _hash(space: Keyspace, words: Words) -> dict[bytes, bytes]:
    return space.get(words[1], dict) or {}


COMMANDS: dict[bytes, Callable[[Keyspace, Words], Any]] = {
    b"PING": lambda space, words: words[1] if len(words) > 1 else Status("PONG"),
    b"TIME": lambda space, words: [b"%d" % (space.now_ms // 1000), b"%d" % (space.now_ms % 1000 * 1000)],
    b"EXISTS": lambda space, words: sum(space.exists(key) for key in words[1:]),
    b"GET": lambda space, words: space.get(words[1], bytes),
    b"MGET": lambda space, words: [space.get(key, bytes) for key in words[1:]],
    b"STRLEN": lambda space, words: len(space.get(words[1], bytes) or b""),
    b"HGET": lambda space, words: _hash(space, words).get(words[2]),
    b"HMGET": lambda space, words: [_hash(space, words).get(name) for name in words[2:]],
    b"HGETALL": lambda space, words: [part for field in _hash(space, words).items() for part in field],
    b"HKEYS": lambda space, words: list(_hash(space, words)),
}


def command(*names: bytes) -> Callable[[Callable[[Keyspace, Words], Any]], Callable[[Keyspace, Words], Any]]:
    def register(function: Callable[[Keyspace, Words], Any]) -> Callable[[Keyspace, Words], Any]:
        for name in names:
            COMMANDS[name] = function
        return function

    return register


def name_of(entry: Id) -> bytes:
    return b"%d-%d" % entry


def id_of(text: bytes, sequence: int = 0) -> Id:
    first, _, second = text.partition(b"-")
    try:
        return int(first), int(second) if second else sequence
    except ValueError:
        raise Refused("ERR Invalid stream ID specified as stream command argument") from None


@command(b"SET")
def _set(space: Keyspace, words: Words) -> Any:
    key, value = words[1:3]
    options = iter(words[3:])
    at = None
    wants = None
    keep = gets = False
    for option in options:
        name = option.upper()
        if name in (b"NX", b"XX"):
            wants = name == b"XX"
        elif name == b"EX":
            at = space.now_ms + 1000 * int(next(options))
        elif name == b"PX":
            at = space.now_ms + int(next(options))
        elif name == b"PXAT":
            at = int(next(options))
        elif name == b"KEEPTTL":
            keep = True
        elif name == b"GET":
            gets = True
        else:
            raise Refused("ERR syntax error")
    before = space.get(key, bytes) if gets else None
    if wants is not None and space.exists(key) is not wants:
        return before if gets else None
    space.data[key] = value
    if at is not None:
        space.expiry[key] = at
    elif not keep:
        space.expiry.pop(key, None)
    space.did(b"SET", key, value, *([b"PXAT", b"%d" % at] if at is not None else [b"KEEPTTL"] if keep else []))
    return before if gets else OK


@command(b"DEL", b"UNLINK")
def _del(space: Keyspace, words: Words) -> Any:
    gone = [key for key in words[1:] if space.exists(key) and space.drop(key)]
    if gone:
        space.did(b"DEL", *gone)
    return len(gone)


@command(b"EXPIRE", b"PEXPIRE", b"PEXPIREAT")
def _expire(space: Keyspace, words: Words) -> Any:
    if len(words) > 3:
        raise NotImplementedError("options of EXPIRE")
    if not space.exists(words[1]):
        return 0
    name, amount = words[0].upper(), int(words[2])
    at = amount if name == b"PEXPIREAT" else space.now_ms + amount * (1000 if name == b"EXPIRE" else 1)
    if at <= space.now_ms:
        space.drop(words[1])
        space.did(b"DEL", words[1])
    else:
        space.expiry[words[1]] = at
        space.did(b"PEXPIREAT", words[1], b"%d" % at)
    return 1


@command(b"PERSIST")
def _persist(space: Keyspace, words: Words) -> Any:
    if not space.exists(words[1]) or space.expiry.pop(words[1], None) is None:
        return 0
    space.did(b"PERSIST", words[1])
    return 1


@command(b"TTL", b"PTTL")
def _ttl(space: Keyspace, words: Words) -> Any:
    if not space.exists(words[1]):
        return -2
    at = space.expiry.get(words[1])
    if at is None:
        return -1
    left = at - space.now_ms
    return left if words[0].upper() == b"PTTL" else (left + 500) // 1000


@command(b"SCAN")
def _scan(space: Keyspace, words: Words) -> Any:
    options = dict(zip([word.upper() for word in words[2::2]], words[3::2], strict=True))
    found = sorted(key for key in list(space.data) if space.exists(key) and _matches(options.get(b"MATCH"), key))
    return [b"0", found]


def _matches(pattern: bytes | None, key: bytes) -> bool:
    if pattern is None:
        return True
    plain = pattern.replace(b"\\-", b"-")
    if b"\\" in plain:
        raise NotImplementedError("a pattern with a backslash")
    return fnmatch.fnmatchcase(key.decode("latin-1"), plain.decode("latin-1").replace("[", "[[]"))


@command(b"COPY")
def _copy(space: Keyspace, words: Words) -> Any:
    source, target = words[1:3]
    if [word.upper() for word in words[3:]] not in ([], [b"REPLACE"]):
        raise NotImplementedError("options of COPY")
    if source == target:
        raise Refused("ERR source and destination objects are the same")
    if not space.exists(source):
        return 0
    if space.exists(target):
        if len(words) == 3:
            return 0
        space.drop(target)
    value = space.data[source]
    space.data[target] = value if isinstance(value, bytes) else value.copy()
    space.expiry.pop(target, None)
    if source in space.expiry:
        space.expiry[target] = space.expiry[source]
    space.did(b"COPY", source, target, b"REPLACE")
    return 1


@command(b"MEMORY")
def _memory(space: Keyspace, words: Words) -> Any:
    """MEMORY USAGE, about: what an element takes hangs on the machine."""
    if words[1].upper() != b"USAGE":
        raise NotImplementedError("another MEMORY")
    if not space.exists(words[2]):
        return None
    value = space.data[words[2]]
    if isinstance(value, Stream):
        return 64 + sum(len(word) for fields in value.fields for word in fields)
    return 64 + len(value)


@command(b"HSET")
def _hset(space: Keyspace, words: Words) -> Any:
    value = space.make(words[1], dict)
    before = len(value)
    value.update(zip(words[2::2], words[3::2], strict=True))
    space.did(*words)
    return len(value) - before


@command(b"HDEL")
def _hdel(space: Keyspace, words: Words) -> Any:
    value = space.get(words[1], dict) or {}
    gone = [name for name in words[2:] if value.pop(name, None) is not None]
    if gone:
        space.did(b"HDEL", words[1], *gone)
        if not value:
            space.drop(words[1])
    return len(gone)


@command(b"RPUSH", b"LPUSH")
def _push(space: Keyspace, words: Words) -> Any:
    value = space.make(words[1], list)
    for word in words[2:]:
        value.insert(len(value) if words[0].upper() == b"RPUSH" else 0, word)
    space.did(*words)
    return len(value)


@command(b"LRANGE")
def _lrange(space: Keyspace, words: Words) -> Any:
    value = space.get(words[1], list) or []
    first, last = (place + len(value) if place < 0 else place for place in map(int, words[2:4]))
    return value[max(0, first) : last + 1] if last >= 0 else []


@command(b"LTRIM")
def _ltrim(space: Keyspace, words: Words) -> Any:
    value = space.get(words[1], list)
    if value is not None:
        value[:] = _lrange(space, words)
        space.did(*words)
        if not value:
            space.drop(words[1])
    return OK


@command(b"LREM")
def _lrem(space: Keyspace, words: Words) -> Any:
    if words[2] != b"0":
        raise NotImplementedError("LREM of some")
    value = space.get(words[1], list) or []
    n = value.count(words[3])
    if n:
        value[:] = [one for one in value if one != words[3]]
        space.did(*words)
        if not value:
            space.drop(words[1])
    return n


@command(b"XADD")
def _xadd(space: Keyspace, words: Words) -> Any:
    if words[2][:3] in (b"MAX", b"MIN"):
        raise NotImplementedError("options of XADD")
    stream = space.get(words[1], Stream)
    if words[2] == b"NOMKSTREAM":
        if stream is None:
            return None
        words = [*words[:2], *words[3:]]
    last = stream.last if stream is not None else (0, 0)
    if last == LAST:
        raise Refused("ERR The stream has exhausted the last possible ID, unable to add more items")
    if words[2] == b"*":
        entry = (space.now_ms, 0) if space.now_ms > last[0] else (last[0], last[1] + 1)
    else:
        entry = id_of(words[2])
        if entry == (0, 0):
            raise Refused("ERR The ID specified in XADD must be greater than 0-0")
        if entry <= last:
            raise Refused("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream = space.make(words[1], Stream)
    stream.ids.append(entry)
    stream.fields.append(words[3:])
    stream.last = entry
    stream.added += 1
    space.touched.add(words[1])
    space.effects.append([words[0], words[1], name_of(entry), *words[3:]])
    return name_of(entry)


@command(b"XSETID")
def _xsetid(space: Keyspace, words: Words) -> Any:
    if len(words) > 3:
        raise NotImplementedError("options of XSETID")
    entry = id_of(words[2])
    stream = space.get(words[1], Stream)
    if stream is None:
        raise Refused("ERR no such key")
    if stream.ids and entry < stream.ids[-1]:
        raise Refused("ERR The ID specified in XSETID is smaller than the target stream top item")
    stream.last = entry
    space.did(b"XSETID", words[1], name_of(entry))
    return OK


@command(b"XLEN")
def _xlen(space: Keyspace, words: Words) -> Any:
    stream = space.get(words[1], Stream)
    return len(stream.ids) if stream is not None else 0


@command(b"XRANGE", b"XREVRANGE")
def _xrange(space: Keyspace, words: Words) -> Any:
    backwards = words[0].upper() == b"XREVRANGE"
    low, high = (words[3], words[2]) if backwards else (words[2], words[3])
    count = int(words[5]) if len(words) > 4 else None
    stream = space.get(words[1], Stream)
    if stream is None:
        return []
    found = stream.between(_bound(low, True), _bound(high, False))
    if backwards:
        found = found[::-1]
    return [stream.element(at) for at in (found if count is None else found[:count])]


def _bound(text: bytes, low: bool) -> Id:
    if text in (b"-", b"+"):
        return (0, 0) if text == b"-" else LAST
    if text[:1] == b"(":
        entry = id_of(text[1:], 0)
        if not low:
            return (entry[0], entry[1] - 1) if entry[1] else (entry[0] - 1, LAST[1])
        return entry[0], entry[1] + 1
    return id_of(text, 0 if low else LAST[1])


@command(b"XREAD")
def read(space: Keyspace, words: Words) -> Any:
    """XREAD, as if without BLOCK; ``block_of`` says how long it would wait."""
    at = [word.upper() for word in words].index(b"STREAMS")
    options = dict(zip([word.upper() for word in words[1:at:2]], words[2:at:2], strict=True))
    count = int(options.get(b"COUNT", 2**31))
    n = (len(words) - at - 1) // 2
    replies = []
    for key, after in zip(words[at + 1 : at + 1 + n], words[at + 1 + n :], strict=True):
        stream = space.get(key, Stream)
        if stream is None:
            continue
        milliseconds, sequence = id_of(after)
        found = stream.between((milliseconds, sequence + 1), LAST)[:count]
        if found:
            replies.append([key, [stream.element(place) for place in found]])
    return replies or NO_LIST


def block_of(words: Words) -> float | None:
    """Seconds that an XREAD waits, None when it does not."""
    for at, word in enumerate(words[1:6], 1):
        if word.upper() == b"BLOCK":
            return int(words[at + 1]) / 1000
        if word.upper() == b"STREAMS":
            return None
    return None


@command(b"XINFO")
def _xinfo(space: Keyspace, words: Words) -> Any:
    if words[1].upper() != b"STREAM" or len(words) > 3:
        raise NotImplementedError("another XINFO")
    stream = space.get(words[2], Stream)
    if stream is None:
        raise Refused("ERR no such key")
    first = stream.element(0) if stream.ids else None
    last = stream.element(-1) if stream.ids else None
    return [
        b"length", len(stream.ids), b"radix-tree-keys", 1, b"radix-tree-nodes", 2,
        b"last-generated-id", name_of(stream.last), b"max-deleted-entry-id", name_of((0, 0)),
        b"entries-added", stream.added, b"recorded-first-entry-id", name_of(stream.ids[0] if stream.ids else (0, 0)),
        b"groups", 0, b"first-entry", first, b"last-entry", last,
    ]  # fmt: skip


@command(b"XTRIM")
def _xtrim(space: Keyspace, words: Words) -> Any:
    if words[2].upper() != b"MINID" or len(words) > 5:
        raise NotImplementedError("another XTRIM")
    stream = space.get(words[1], Stream)
    if stream is None:
        return 0
    n = bisect_left(stream.ids, id_of(words[-1]))
    if n:
        del stream.ids[:n], stream.fields[:n]
        space.did(b"XTRIM", words[1], b"MINID", words[-1])
    return n


@command(b"EVAL")
def _eval(space: Keyspace, words: Words) -> Any:
    n_keys = int(words[2])
    return run_script(space.execute, words[1], words[3 : 3 + n_keys], words[3 + n_keys :])
