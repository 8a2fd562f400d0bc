"""The commands of ``abound``, a file a group. They import what is heavy when they run, not when they are listed."""
