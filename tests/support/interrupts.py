"""Ctrl-C for programs that tests start: whoever runs the tests in the background may have been told to ignore it."""

import signal


def heard() -> None:
    """What to run in a child between fork and exec (``preexec_fn``), so that SIGINT does what it does at a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
