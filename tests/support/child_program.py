"""What the tests of a supervised child run: does what its arguments say, one after the other."""

import os
import signal
import sys
import time

from abound.processes.status_pipe import Report, Reporter


def main(words):
    status = words.index("--status")
    reporter = Reporter(int(words[status + 1]))
    for word in words[:status]:
        verb, _, value = word.partition("=")
        if verb == "stage":
            reporter(value, 0.5)
        elif verb == "warm":
            reporter.send(Report(warm=True))
        elif verb == "ready":
            reporter.send(Report(stage="ready", progress=1.0, ready=True))
        elif verb == "error":
            reporter.send(Report(error=value))
        elif verb == "nonsense":
            os.write(int(words[status + 1]), b"nonsense\n")
        elif verb == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif verb == "polite":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        elif verb == "mark":
            with open(value, "a") as file:
                file.write(f"{os.getpid()}\n")
        elif verb == "sleep":
            time.sleep(float(value))
        elif verb == "exit":
            sys.exit(int(value))


if __name__ == "__main__":
    main(sys.argv[1:])
