"""SipHash against CPython's own."""

import os
import subprocess
import sys

import numpy as np
import pytest

from abound_core.instances.siphash_kernels import siphash13

WORDS = [bytes(range(n)) for n in range(1, 70)] + [b"wheat", "Weizen – żyto".encode(), b"\x00", b"\xff" * 200]


def secret_of_python(seed: int) -> tuple[int, int]:
    """The two halves of the secret that CPython derives from PYTHONHASHSEED."""
    if seed == 0:
        return 0, 0
    x, secret = seed, bytearray()
    for _ in range(16):
        x = (x * 214013 + 2531011) % 2**32
        secret.append((x >> 16) & 0xFF)
    return int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")


def sip(secret: tuple[int, int], key: bytes) -> int:
    padded = np.frombuffer(b"?" * 3 + key + b"?", np.uint8)
    return int(siphash13(np.uint64(secret[0]), np.uint64(secret[1]), padded, 3, len(key)))


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="this Python hashes otherwise")
@pytest.mark.parametrize("seed", [0, 1, 4_000_000_000])
def test_siphash_is_that_of_python(seed):
    program = f"print(*[hash(bytes.fromhex(x)) for x in {[word.hex() for word in WORDS]!r}])"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    out = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    expected = [int(value) % 2**64 for value in out.stdout.split()]
    assert [sip(secret_of_python(seed), word) for word in WORDS] == expected
