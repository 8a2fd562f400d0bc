"""The resource calls of both clients, each written once.

A call builds its request here, and the client sends it. So the answer has another type in each client, and the type
parameters of ``Resources`` name these types.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from abound.client.errors import Answer
from abound.client.requests import (
    ACTIVATE_SECONDS,
    DATA_FILE,
    DATASET_SECONDS,
    IMPORT_SECONDS,
    JSON,
    KEY_HEADER,
    MODEL_FILE,
    SNAPSHOT_SECONDS,
    VERSION_FILE,
    Call,
    challenger_path,
    challengers_path,
    dataset_path,
    encode_document,
    job_path,
    model_path,
    query_string,
    version_path,
)

Document = TypeVar("Document")  # a JSON document, or the coroutine that returns it
Nothing = TypeVar("Nothing")  # None, or the coroutine that returns it
Pieces = TypeVar("Pieces")  # a file to send: an iterable or async iterable of bytes
Download = TypeVar("Download")  # a file received: an iterator or async iterator of bytes


class ModelLabels(Generic[Document]):
    """The labels of one model and their changes: ``client.model(name).labels``. The arguments are those of the API."""

    def __init__(self, client: Resources[Document, Any, Any, Any], name: str) -> None:
        self._client = client
        self._name = name

    def list(self, **query: Any) -> Document:
        return self._client.labels(self._name, **query)

    def show(self, label: str, *, limit: int | None = None) -> Document:
        return self._client.label(self._name, label, limit=limit)

    def rename(self, label: str, to: str, *, alias: bool = True, dry_run: bool = False) -> Document:
        return self._change("rename", [label], to, alias, dry_run)

    def merge(self, labels: Sequence[str], into: str, *, alias: bool = True, dry_run: bool = False) -> Document:
        return self._change("merge", labels, into, alias, dry_run)

    def split(self, label: str, to: Sequence[str], *, dry_run: bool = False) -> Document:
        return self._change("split", [label], [*to], True, dry_run)

    def retire(self, label: str, *, dry_run: bool = False) -> Document:
        return self._change("retire", [label], "", True, dry_run)

    def revive(self, label: str, *, dry_run: bool = False) -> Document:
        return self._change("revive", [label], "", True, dry_run)

    def changes(self) -> Document:
        return self._client.label_changes(self._name)

    def _change(
        self, kind: str, labels: Sequence[str], to: str | Sequence[str], alias: bool, dry_run: bool
    ) -> Document:
        more = {"to": to, "alias": alias} if to else {}
        return self._client.change_labels(
            self._name, [{"kind": kind, "from": one, **more} for one in labels], dry_run=dry_run
        )


class Resources(Generic[Document, Nothing, Pieces, Download]):
    """The resource calls. ``Client`` returns the documents themselves, ``AsyncClient`` coroutines that return them."""

    def ready(self) -> Document:
        """Return the answer of ``/readyz``. Raises Refused with status 503 while the service is not ready."""
        return self._ask(Call("GET", "/readyz", once=True))

    def models(self) -> Document:
        """Return all models."""
        return self._ask(Call("GET", "/models"))

    def describe(self, name: str) -> Document:
        """Return one model with its configuration, sizes and digest."""
        return self._ask(Call("GET", model_path(name)))

    def stats(self, name: str) -> Document:
        """Return the running score of a model, its sizes and its replicas."""
        return self._ask(Call("GET", f"{model_path(name)}/stats"))

    def uncertain(self, name: str, *, limit: int | None = None) -> Document:
        """Return the remembered instances to ask a person about, with their texts and best labels, at most ``limit``.

        The id of one is its ``prediction`` in ``learn``.
        """
        return self._ask(Call("GET", f"{model_path(name)}/uncertain{query_string(limit=limit)}"))

    def labels(
        self,
        name: str,
        *,
        prefix: str | None = None,
        contains: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Document:
        """Return labels that a model knows, at most ``limit`` from ``offset`` on.

        ``prefix`` and ``contains`` look at labels and names, without regard to case and accents. ``sort`` is ``first``,
        ``count``, ``name`` or ``R@1``.
        """
        query = query_string(prefix=prefix, contains=contains, sort=sort, limit=limit, offset=offset)
        return self._ask(Call("GET", f"{model_path(name)}/labels{query}"))

    def register_labels(
        self, name: str, labels: Sequence[Mapping[str, Any]], *, learn: bool = True, source: str | None = None
    ) -> Document:
        """Register labels: each has a ``label``, and may have ``name``, ``description``, ``parent`` and ``metadata``.

        All of them are registered, or none. With ``learn`` each name is learned once, as an instance of its label.
        """
        request: dict[str, Any] = {"labels": [dict(one) for one in labels], "learn": learn}
        if source is not None:
            request["source"] = source
        return self._ask(Call("PUT", f"{model_path(name)}/labels", encode_document(request), JSON))

    def change_labels(
        self, name: str, changes: Sequence[Mapping[str, Any]], *, dry_run: bool = False, key: str | None = None
    ) -> Document:
        """Make changes of labels, all or none: each has a ``kind`` and ``from``, and may have ``to`` and ``alias``.

        ``key`` is an idempotency key, by default a random one. With ``dry_run`` return what would change.
        """
        body = encode_document({"changes": [dict(one) for one in changes], "dry_run": dry_run})
        headers = {**JSON, KEY_HEADER: key or uuid.uuid4().hex}
        return self._ask(Call("POST", f"{model_path(name)}/labels/changes", body, headers))

    def label_changes(self, name: str) -> Document:
        """Return the newest changes of labels, newest first, each with how to undo it."""
        return self._ask(Call("GET", f"{model_path(name)}/labels/changes"))

    def label(self, name: str, label: str, *, limit: int | None = None) -> Document:
        """Return a label: how often it was learned, its R@1, wrong labels that were ranked before it, its features."""
        return self._ask(Call("GET", f"{model_path(name)}/label{query_string(name=label, limit=limit)}"))

    def suspicious(self, name: str, *, limit: int | None = None) -> Document:
        """Return the events that may have a wrong label, most suspicious first, of a model with probabilities."""
        return self._ask(Call("GET", f"{model_path(name)}/suspicious{query_string(limit=limit)}"))

    def dismiss(self, name: str, offset: str) -> Nothing:
        """Leave an event out of ``suspicious`` from now on: its label is right."""
        return self._delete(f"{model_path(name)}/suspicious/{offset}")

    def configure(self, name: str, fields: Answer) -> Document:
        """Create a model or change fields of its configuration."""
        return self._ask(Call("PUT", model_path(name), encode_document(fields), JSON))

    def delete(self, name: str) -> Nothing:
        """Delete a model and everything it learned."""
        return self._delete(model_path(name))

    def snapshots(self, name: str) -> Document:
        """Return the snapshots of a model, newest first."""
        return self._ask(Call("GET", f"{model_path(name)}/snapshots"))

    def snapshot(self, name: str) -> Document:
        """Request a snapshot."""
        return self._ask(Call("POST", f"{model_path(name)}/snapshots", repeatable=False, seconds=SNAPSHOT_SECONDS))

    def versions(self, name: str) -> Document:
        """Return the versions of a model, newest first."""
        return self._ask(Call("GET", f"{model_path(name)}/versions"))

    def version(self, name: str, version: str) -> Document:
        """Return one version: the data it was fitted on and its evaluation."""
        return self._ask(Call("GET", version_path(name, version)))

    def compare_versions(self, name: str, ids: Sequence[str]) -> Document:
        """Return a comparison of versions."""
        return self._ask(Call("GET", f"{model_path(name)}/comparison{query_string(id=list(ids))}"))

    def delete_version(self, name: str, version: str) -> Nothing:
        """Delete a version that is not in use."""
        return self._delete(version_path(name, version))

    def activate(self, name: str, version: str, reason: str = "") -> Document:
        """Make a version answer the requests that name none. ``live`` stands for the index."""
        body = encode_document({"version": version, "reason": reason})
        return self._ask(Call("POST", f"{model_path(name)}/activate", body, JSON, seconds=ACTIVATE_SECONDS))

    def challengers(self, name: str) -> Document:
        """Return the challengers and the standings of the contest."""
        return self._ask(Call("GET", challengers_path(name)))

    def enter_challenger(self, name: str, version: str, reason: str = "asked for") -> Document:
        """Enter a version as a challenger: it is scored on learned instances, and activated once it proves better."""
        body = encode_document({"version": version, "reason": reason})
        return self._ask(Call("POST", challengers_path(name), body, JSON))

    def withdraw_challenger(self, name: str, version: str) -> Nothing:
        """Withdraw a version from the contest. The version is kept, and stays active if it is."""
        return self._delete(challenger_path(name, version))

    def datasets(self) -> Document:
        """Return the data sets that jobs can learn from."""
        return self._ask(Call("GET", "/datasets"))

    def dataset(self, name: str) -> Document:
        """Return one data set."""
        return self._ask(Call("GET", dataset_path(name)))

    def delete_dataset(self, name: str) -> Nothing:
        """Delete a data set."""
        return self._delete(dataset_path(name))

    def methods(self) -> Document:
        """Return the methods of jobs, with the JSON Schema of their parameters."""
        return self._ask(Call("GET", "/methods"))

    def submit(self, request: Answer, key: str | None = None) -> Document:
        """Submit a job. ``key`` is an idempotency key, by default a random one.

        Raises ValueError if the key cannot stand in a header.
        """
        if key and not (key.isascii() and key.isprintable()):
            raise ValueError("an idempotency key must be printable ASCII")
        headers = {**JSON, KEY_HEADER: key or uuid.uuid4().hex}
        return self._ask(Call("POST", "/jobs", encode_document(request), headers))

    def jobs(self, *, state: str | None = None, model: str | None = None, limit: int | None = None) -> Document:
        """Return at most ``limit`` jobs, newest first. Filter them by ``state`` and ``model``."""
        return self._ask(Call("GET", f"/jobs{query_string(state=state, model=model, limit=limit)}"))

    def job(self, job_id: str) -> Document:
        """Return one job."""
        return self._ask(Call("GET", job_path(job_id)))

    def cancel(self, job_id: str) -> Document:
        """Cancel a job, which may take seconds to stop."""
        return self._ask(Call("DELETE", job_path(job_id)))

    def classify(self, name: str, request: Mapping[str, Any]) -> Document:
        """Classify one instance or a batch."""
        return self._ask(Call("POST", f"{model_path(name)}/classify", encode_document(request), JSON))

    def learn(self, name: str, request: Mapping[str, Any]) -> Document:
        """Learn one instance or a batch. Retries do not learn it twice."""
        # A request without an idempotency key gets one, so that it can be repeated if its answer breaks off. A request
        # that waits only for the log gets none: with a key, the service would answer only once the request is applied.
        instances = request.get("instances")
        keys = [one.get("key") for one in instances] if isinstance(instances, list) else [request.get("key")]
        add_key = not any(keys) and request.get("wait") != "log"
        headers = {**JSON, KEY_HEADER: uuid.uuid4().hex} if add_key else JSON
        path = f"{model_path(name)}/learn"
        return self._ask(Call("POST", path, encode_document(request), headers, repeatable=add_key or all(keys)))

    # Files

    def export(self, name: str) -> Download:
        """Yield a model as one file, piece by piece."""
        return self._download(f"{model_path(name)}/export")

    def export_version(self, name: str, version: str) -> Download:
        """Yield a version as one file, piece by piece."""
        return self._download(f"{version_path(name, version)}/export")

    def import_(self, name: str, pieces: Pieces) -> Document:
        """Load an exported file into a model and return the model. Waits until the replicas have loaded it."""
        path = f"{model_path(name)}/import"
        return self._ask(Call("PUT", path, pieces, MODEL_FILE, once=True, seconds=IMPORT_SECONDS))

    def import_version(self, name: str, pieces: Pieces) -> Document:
        """Add an exported version to a model and return the version."""
        path = f"{model_path(name)}/versions"
        return self._ask(Call("POST", path, pieces, VERSION_FILE, once=True, seconds=IMPORT_SECONDS))

    def put_dataset(
        self,
        file: str | os.PathLike[str],
        name: str | None = None,
        *,
        pieces: Pieces | None = None,
        **options: str | int | bool | Sequence[str] | None,
    ) -> Document:
        """Upload a file as a data set and return it. It replaces a data set of the same name.

        Parameters
        ----------
        file : str or path
            The suffix names the format, such as ``.jsonl.gz``.
        name : str or None
            Name of the data set. Default: the name of the file up to its first dot.
        pieces : iterable of bytes, async iterable for ``AsyncClient``, or None
            Sent as the content instead of the file, which need not exist then.
        options
            Those of reading a file, such as ``label`` or ``encoding``; see the parameters of ``PUT /datasets``.
        """
        source = Path(file)
        path = dataset_path(source.name.partition(".")[0] if name is None else name)
        content = self._read(source) if pieces is None else pieces
        form, compressed = options.get("format"), source.suffix if source.suffix in (".gz", ".zst") else ""
        path += query_string(filename=f"data.{form}{compressed}" if form else source.name, **options)
        return self._ask(Call("PUT", path, content, DATA_FILE, once=True, seconds=DATASET_SECONDS))

    # What a client implements

    def _ask(self, call: Call) -> Document:
        """Send a request, again if that may help, and return its answer."""
        raise NotImplementedError

    def _delete(self, path: str) -> Nothing:
        raise NotImplementedError

    def _read(self, path: Path) -> Pieces:
        raise NotImplementedError

    def _download(self, path: str) -> Download:
        raise NotImplementedError
