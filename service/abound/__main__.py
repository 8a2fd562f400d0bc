"""``python -m abound``: the command line."""

from abound.cli.main import main

if __name__ == "__main__":
    main()
