"""Log and snapshots at their bounds fit into the store that the files run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from abound.replica.predictions import RememberParams
from abound.state.snapshots import SnapshotParams
from tests.contracts.manifests import bytes_of, one_of, rendered

ROOT = Path(__file__).parents[2]


def most_in_the_store(settings: dict[str, str]) -> int:
    """Bytes: a model's log at its bound, remembered instances, and snapshots of all models: one is being written."""
    log = int(settings["ABOUND_LOG_MAX_LOG_BYTES"]) + RememberParams().most_bytes
    return log + (SnapshotParams().keep + 1) * int(settings["ABOUND_MAX_MEMORY"])


@pytest.mark.parametrize("folder", ["base", "overlays/small"])
def test_log_and_snapshots_at_their_bounds_fit_into_the_store(folder: str) -> None:
    """Learning is refused before the store is full; a third more of memory is for rewriting its file."""
    documents = rendered(folder)
    spec = one_of(documents, "StatefulSet", "store")["spec"]
    [store] = spec["template"]["spec"]["containers"]
    limit = bytes_of(store["resources"]["limits"]["memory"])
    [variable] = store["env"]
    assert variable == {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}
    [told] = re.findall(r"--maxmemory (\$\(\(.*?\)\)) ", store["args"][0])
    shell = subprocess.run(["sh", "-c", f"echo {told}"], env={"MEMORY": str(limit)}, capture_output=True, check=True)
    assert most_in_the_store(one_of(documents, "ConfigMap", "abound")["data"]) <= int(shell.stdout) <= 3 / 4 * limit
    [claim] = spec["volumeClaimTemplates"]
    assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) >= 4 * limit


def test_log_and_snapshots_at_their_bounds_fit_into_the_store_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    command = services["store"]["command"]
    most = command[command.index("--maxmemory") + 1]
    assert most_in_the_store(services["replica"]["environment"]) <= int(most.removesuffix("gb")) * 2**30
