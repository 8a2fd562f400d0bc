"""Random Fourier features: inputs whose dot products approximate a kernel (Rahimi and Recht, NIPS 2007)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Singles = npt.NDArray[np.float32]

PAIRS = 2_000  # pairs of instances whose distances determine the bandwidth


@dataclass(frozen=True, slots=True, eq=False)
class FourierFeatures:
    """A set of random features: sqrt(2) cos(h frequencies + phases), each of mean square 1."""

    frequencies: Singles
    phases: Singles

    def transform(self, H: Singles) -> Singles:
        """Return the features of each row, shape (n, m)."""
        waves: Singles = H @ self.frequencies
        waves += self.phases
        np.cos(waves, out=waves)
        waves *= np.float32(np.sqrt(2.0))
        return waves


def draw_features(
    H: Singles, m: int, kernel: Literal["gaussian", "laplacian"], bandwidth: float, rng: np.random.Generator
) -> FourierFeatures:
    """Draw ``m`` features: normal frequencies for exp(-|x - y|^2 / 2 s^2), Cauchy for exp(-|x - y|_1 / s).

    ``bandwidth`` is s divided by the median distance of two rows of H, shape (n, k), in the norm of the kernel.
    """
    ends = rng.integers(0, H.shape[0], (2, PAIRS))
    gaps = (H[ends[0]] - H[ends[1]])[ends[0] != ends[1]].astype(np.float64)
    lengths = np.sqrt((gaps**2).sum(axis=1)) if kernel == "gaussian" else np.abs(gaps).sum(axis=1)
    scale = bandwidth * float(np.median(lengths)) if len(lengths) else 1.0
    shape = (H.shape[1], m)
    frequencies = rng.standard_normal(shape) if kernel == "gaussian" else rng.standard_cauchy(shape)
    phases = rng.uniform(0.0, 2.0 * np.pi, m)
    return FourierFeatures((frequencies / (scale or 1.0)).astype(np.float32), phases.astype(np.float32))
