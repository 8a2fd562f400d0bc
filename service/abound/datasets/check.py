"""The process that checks a data set: ``python -m abound.datasets.check FILE BYTES OPTIONS``.

The process reads a file of the artifact store line by line, as a job would, and writes lines of JSON to standard
output. OPTIONS is a ``ReadOptions`` as JSON. While it reads, each second a line says which share of the bytes it has
read: ``{"share": 0.25}``. The last line holds the counts and the resolved ``options``, or one of these keys:

    error       the file is invalid; the message gives the number of the line
    too_large   the file has more than BYTES, decompressed, or too many names
    away        the file cannot be read now

The process keeps every name in memory once. The operating system limits its memory to ``MAX_EXTRA_BYTES``.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from abound.artifacts.artifact_store import ArtifactStore
from abound.datasets.files import local_file, read_file, resolve_file
from abound.processes.kernel_cache import set_cache_dir
from abound.processes.lifetime import end_with_parent
from abound.processes.memory import limit_memory
from abound.settings import Settings
from abound.store.client import Store, StoreParams
from abound_core.config import ModelConfig
from abound_core.errors import AboundError, ArtifactsUnavailable, InvalidInstance, Malformed, StoreUnavailable, TooLarge
from abound_core.instances.dense_vector import FIELD
from abound_core.instances.read_options import ReadOptions
from abound_core.instances.record import pack_labels, without_dense
from abound_core.instances.vectorizer import Vectorizer
from abound_core.instances.vocabulary import Vocabulary
from abound_core.instances.vocabulary_kernels import intern_vector
from abound_core.limits import DATASET_LIMITS

MAX_NAME_BYTES = 2**29  # of the names of features and labels together; each label counts ``NAME_COST`` more
NAME_COST = 100

REPORT_SECONDS = 1.0

MAX_EXTRA_BYTES = 2**32  # of memory that the process may allocate after its start


def counts(
    path: Path,
    plain_bytes: int,
    name_bytes: int = MAX_NAME_BYTES,
    options: ReadOptions = ReadOptions(),
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Return the counts of a file. Raise TooLarge, or Malformed, whose message begins with ``line <number>``."""
    vectorizer = Vectorizer(ModelConfig(), DATASET_LIMITS)
    features, ids = (
        Vocabulary((secrets.randbits(64), secrets.randbits(64))),
        np.empty(DATASET_LIMITS.max_features, np.int32),
    )
    known: set[str] = set()
    n = labelled = learnable = nnz = assertions = named = dimension = 0
    try:
        for instance in read_file(str(path), progress, plain_bytes, options=options):
            try:
                if given := vectorizer.labels(instance.complete_labels):
                    pack_labels(given, DATASET_LIMITS)
                dense = instance.dense
                if dense is not None and len(dense) != (dimension := dimension or len(dense)):
                    raise InvalidInstance(f"{len(dense)} numbers; the first vector of the file has {dimension}", FIELD)
                vector = without_dense(vectorizer.vectorize(instance.features, instance.text, dense))
            except InvalidInstance as error:
                field = options.vector if error.field == FIELD and options.vector else error.field
                raise Malformed(f"line {instance.line}: {field}: {error}") from error
            active = int.from_bytes(vector[:4], "little")
            features.make_room(active, len(vector) - 4 - 6 * active)
            intern_vector(features.arrays, vector, 0, ids[:active])
            labels = set(given)
            named += sum(NAME_COST + len(label.encode()) for label in labels - known)
            known |= labels
            if named + features.n_bytes > name_bytes:
                raise TooLarge(f"the names of the file's features and labels take over {name_bytes} bytes")
            n += 1
            labelled += bool(labels)
            learnable += bool(labels) and (active > 0 or dense is not None)
            nnz += active
            assertions += len(labels)
    except Malformed as error:
        raise Malformed(str(error).removeprefix(f"{path}: ")) from error
    if not n:
        raise Malformed("there are no instances")
    if not learnable:
        raise Malformed("no instance has a label and an active feature")
    return {
        "instances": n,
        "labelled": labelled,
        "features": len(features),
        "classes": len(known),
        "nnz": nnz,
        "assertions": assertions,
    }


async def check(name: str, plain_bytes: int, options: ReadOptions) -> dict[str, Any]:
    """Return the counts of a file in the artifact store, or the reason why there are none."""
    settings = Settings.load()
    store = Store(settings.store_url(), settings.group(StoreParams))
    try:
        artifacts = ArtifactStore(settings.artifacts_location() or "")
        await artifacts.join(store)
        async with local_file(artifacts, name) as path:
            options = resolve_file(str(path), options)
            found = counts(path, plain_bytes, options=options, progress=_reporter(path.stat().st_size))
            return {**found, "options": msgspec.to_builtins(options)}
    except MemoryError:
        return {"too_large": "checking the file exceeds the memory limit; split the file"}
    except TooLarge as error:
        return {"too_large": str(error)}
    except (ArtifactsUnavailable, StoreUnavailable) as error:
        return {"away": str(error)}
    except AboundError as error:
        return {"error": str(error)}
    finally:
        await store.close()


def _reporter(n_bytes: int) -> Callable[[int], None]:
    """Return a function that writes the share of a file that was read, at most once a second."""
    last = time.monotonic()

    def report(position: int) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_SECONDS:
            last = time.monotonic()
            print(json.dumps({"share": round(position / n_bytes, 4)}), flush=True)

    return report


def main() -> int:
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    set_cache_dir()
    limit_memory(MAX_EXTRA_BYTES)
    options = msgspec.json.decode(sys.argv[3], type=ReadOptions)
    json.dump(asyncio.run(check(sys.argv[1], int(sys.argv[2]), options)), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
