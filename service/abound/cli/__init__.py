"""The commands of ``abound``, one file for each group. They import heavy modules when they run, not when listed."""
