"""The outline of a large JSON body: where the elements of its batch are, and how much work it is to decode each.

A JSON decoder holds the GIL until the whole body is decoded, up to a second for 16 MiB. With the outline the elements
are decoded one by one, and a body that would take too long is refused.
"""

from __future__ import annotations

import numpy as np

from abound_core.numba.decorators import inlined, kernel

VALUE_WORK = 4
"""Work of each comma and each beginning of an array or object; an escape in a string counts 1.

Escapes in ``features`` do not count, since these stay raw."""

TWICE = -1

REST, LARGEST = 0, 1

_FEATURES = np.frombuffer(b'"features"', np.uint8)


@inlined
def _is_key(body, first, end, key):
    if end - first != len(key):
        return False
    for i in range(len(key)):  # noqa: SIM110
        if body[first + i] != key[i]:
            return False
    return True


@kernel
def outline(body, name, spans, work):
    """Find the elements of the array ``name`` (with its quotes) of a JSON object; return their number, or ``TWICE``.

    An empty array has one element, which is blank. A body that is not valid JSON has some outline too.

    Parameters
    ----------
    spans : int64 array, shape (m, 2), changed
        Where each of the first ``m`` elements begins and ends.
    work : int64 array, shape (2,), changed
        The work of everything but the array, and of its largest element.
    """
    size, at, depth, n, first, end, begin = len(body), 0, 0, 0, 0, 0, 0
    is_array = is_next = is_raw = False
    rest, own, largest = 0, 0, 0
    while at < size:
        byte = body[at]
        level = 3 if is_array else 1
        cost = 0
        if byte == 34:
            first = at
            at += 1
            while at < size and body[at] != 34:
                if body[at] == 92:
                    cost += not is_raw
                    at += 1
                at += 1
            end = at + 1
        elif byte == 58:
            if depth == level:
                is_raw = _is_key(body, first, end, _FEATURES)
                is_next = depth == 1 and _is_key(body, first, end, name)
        elif byte == 91 or byte == 123:
            cost = VALUE_WORK
            depth += 1
            if is_next and depth == 2 and byte == 91:
                if n > 0:
                    return TWICE
                is_array, begin = True, at + 1
        elif byte == 44 or byte == 93 or byte == 125:
            cost = VALUE_WORK * (byte == 44)
            if depth == level:
                is_raw = is_next = False
            if is_array and depth == 2:
                if n < len(spans):
                    spans[n, 0], spans[n, 1] = begin, at
                n += 1
                begin, largest, own = at + 1, max(largest, own), 0
                is_array = byte == 44
            if byte != 44:
                depth -= 1
        if is_array:
            own += cost
        else:
            rest += cost
        at += 1
    work[REST], work[LARGEST] = rest, max(largest, own)
    return n
