"""Codes of a vector in plain Python, from the formulas, with matrices in place of fast transforms."""

import numpy as np

MASK = 2**64 - 1


def splitmix64(number: int) -> int:
    z = (number + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hadamard(p: int) -> np.ndarray:
    numbers = np.arange(p)
    return 1 - 2 * (np.bitwise_count(numbers[:, None] & numbers) % 2).astype(np.int64)


def codes_of(q: np.ndarray, n_codes: int) -> list[int]:
    """The 64 codes of a vector of int8 numbers, smallest first."""
    p = 1 << (len(q) - 1).bit_length()
    padded, matrix = np.zeros(p, np.int64), hadamard(p)
    padded[: len(q)] = q

    def signs(block: int, turn: int) -> np.ndarray:
        return np.array([1 - 2 * (splitmix64(i + 65536 * (2 * block + turn)) & 1) for i in range(p)])

    z = [
        int(one) for b in range(n_codes // 2 // p) for one in matrix @ (signs(b, 1) * (matrix @ (signs(b, 0) * padded)))
    ]
    winners = sorted(range(len(z)), key=lambda number: (-abs(z[number]), number))[:64]
    return sorted(2 * number + (z[number] < 0) for number in winners)
