"""Print the dependencies of a pyproject.toml, one a line, so that they can be installed before the code is there."""

import sys
import tomllib
from pathlib import Path

print("\n".join(tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]))
