"""Kernels of the live index: layout, votes, Feature Focus, FSU, sparse least squares."""
