"""Hashes of bytes: SipHash-1-3 with a secret key for tables, and an unkeyed stable mix for digests.

The secret prevents attackers from choosing keys that collide in a table. It is local to a process and never part of
any state. The mix must stay the same on every machine and in every release, because digests of replicas are compared.
"""

from __future__ import annotations

import numpy as np

from abound_core.numba.decorators import inlined, kernel
from abound_core.numba.intrinsics import load_part, load_u64

_INIT_0 = np.uint64(0x736F6D6570736575)
_INIT_1 = np.uint64(0x646F72616E646F6D)
_INIT_2 = np.uint64(0x6C7967656E657261)
_INIT_3 = np.uint64(0x7465646279746573)
_END = np.uint64(0xFF)
_TOP = np.uint64(56)
_FACTOR = np.uint64(0xFF51AFD7ED558CCD)
_LAST_FACTOR = np.uint64(0xC4CEB9FE1A85EC53)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_BITS = np.uint64(64)
_R13, _R16, _R17, _R21, _R32 = (np.uint64(n) for n in (13, 16, 17, 21, 32))


@inlined
def _rotate(word, bits):
    return (word << bits) | (word >> (_BITS - bits))


@inlined
def _sip_round(v0, v1, v2, v3):
    v0 += v1
    v2 += v3
    v1 = _rotate(v1, _R13) ^ v0
    v3 = _rotate(v3, _R16) ^ v2
    v0 = _rotate(v0, _R32)
    v2 += v1
    v0 += v3
    v1 = _rotate(v1, _R17) ^ v2
    v3 = _rotate(v3, _R21) ^ v0
    v2 = _rotate(v2, _R32)
    return v0, v1, v2, v3


@kernel
def siphash13(k0, k1, buffer, at, length):
    """Return SipHash-1-3 of ``buffer[at : at + length]`` (uint64), which is not checked to lie inside the buffer.

    Aumasson and Bernstein: SipHash, a fast short-input PRF (2012), with one compression and three final rounds.
    """
    v0, v1, v2, v3 = k0 ^ _INIT_0, k1 ^ _INIT_1, k0 ^ _INIT_2, k1 ^ _INIT_3
    i = 0
    while i + 8 <= length:
        word = load_u64(buffer, at + i)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
        i += 8
    word = load_part(buffer, at + i, length - i) | (np.uint64(length) << _TOP)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _END
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@inlined
def mix(state, word):
    state = (state ^ word) * _FACTOR
    return (state ^ (state >> _SHIFT)) + _STEP


@kernel
def mix_bytes(state, buffer, at, length):
    """Add the length and the bytes ``buffer[at : at + length]`` to an unkeyed mix; return the new state, uint64."""
    state = mix(state, np.uint64(length))
    i = 0
    while i + 8 <= length:
        state = mix(state, load_u64(buffer, at + i))
        i += 8
    return mix(state, load_part(buffer, at + i, length - i))


@inlined
def mix_end(state):
    """Spread the last words over all 64 bits; call once, after everything was mixed in."""
    state *= _LAST_FACTOR
    return state ^ (state >> _SHIFT)
