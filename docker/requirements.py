"""Print the lines of docker/requirements.txt that the image needs: every library with its hashes, for pip install -r.

    python requirements.py [EXTRAS]

``EXTRAS``: names of extras with commas, whose dependencies come too.
"""

import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
known = project["optional-dependencies"]
extras = [name for name in "".join(sys.argv[1:]).split(",") if name]
if unknown := [name for name in extras if name not in known]:
    sys.exit(f"there is no extra {', '.join(unknown)}, but {', '.join(known)}")

locked, parents = {}, {}
for entry, name, via in re.findall(
    r"^((\S+)==.*\n(?:    --hash.*\n)+)    # via (.*)\n", (HERE / "requirements.txt").read_text(), re.MULTILINE
):
    locked[name], parents[name] = entry, set(via.split(", "))
needed = set(project["dependencies"]).union(*(known[name] for name in extras))
needed = {re.split("[<>=;]", one)[0] for one in needed}
if missing := needed - locked.keys():
    sys.exit(f"docker/requirements.txt lacks {', '.join(sorted(missing))}: make lock")
while more := {name for name in locked if parents[name] & needed} - needed:
    needed |= more
print(*(locked[name] for name in sorted(needed)), sep="", end="")
