"""``python -m abound``: the command line."""

from abound.service.cli.main import main

if __name__ == "__main__":
    main()
