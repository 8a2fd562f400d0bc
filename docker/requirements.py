"""Print the dependencies of a pyproject.toml, one a line, so that they can be installed before the code is there.

    python requirements.py pyproject.toml [EXTRAS]

``EXTRAS``: names of extras with commas, whose dependencies come too.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
known = project["optional-dependencies"]
wanted = [name for name in "".join(sys.argv[2:]).split(",") if name]
if unknown := [name for name in wanted if name not in known]:
    sys.exit(f"there is no extra {', '.join(unknown)}, but {', '.join(known)}")
print("\n".join([*project["dependencies"], *(one for name in wanted for one in known[name])]))
