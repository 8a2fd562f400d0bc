"""Settings of the service: their names, checks and defaults in one place.

A value comes from the command line, else from the environment variable ``ABOUND_<NAME>``, else from the file that
``ABOUND_<NAME>_FILE`` names (which keeps secrets out of the environment), else from the default here. An empty
variable counts as unset.

Parameters of one part of the service are a frozen dataclass next to its code. Such a **group** is read by
``settings.group(Params)``. ``GROUPS`` lists the fields that ``ABOUND_<GROUP>_<NAME>`` sets. The parent process does not
import the groups, since most of their modules import the learning code.
"""

from __future__ import annotations

import difflib
import inspect
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr, TypeAdapter, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from abound_core.errors import CannotStart, WrongSetting

PREFIX = "ABOUND_"

# Not read by the service: the tests' data sets, the client's URL, key and model
READ_ELSEWHERE = ("ABOUND_DATA", "ABOUND_URL", "ABOUND_KEY", "ABOUND_MODEL")


class Group(NamedTuple):
    path: str  # of the dataclass
    names: tuple[str, ...]  # the fields that are settings; only tests change the others


GROUPS = {
    "challenger": Group("abound.versions.promotion.params.ChallengerParams", ("loaded_bytes",)),
    "gate": Group("abound_core.promotion_rule.GateParams", ("alpha", "min_events")),
    "datasets": Group("abound.datasets.repository.DatasetParams", ("max_bytes", "total_bytes")),
    "history": Group("abound.history.history.HistoryParams", ("keep_bytes", "keep_seconds")),
    "jobs": Group("abound.jobs.repository.JobParams", ("keep_seconds", "memory_bytes", "threads")),
    "limits": Group(
        "abound_core.limits.Limits",
        ("max_features", "max_key_bytes", "max_labels", "max_label_bytes", "max_text_bytes"),
    ),
    "log": Group("abound.log.stream.LogParams", ("max_log_bytes", "request_bytes", "wait_store_seconds")),
    "rate": Group("abound.security.rate_limits.RateParams", ("key", "source")),
    "remember": Group("abound.replica.predictions.RememberParams", ("seconds", "most_bytes")),
    "serving": Group("abound.replica.loaded_versions.ServingParams", ("loaded_bytes", "threads")),
    "snapshots": Group("abound.state.snapshots.SnapshotParams", ("every_bytes",)),
    "store": Group("abound.store.client.StoreParams", ("reply_seconds", "start_seconds")),
    "versions": Group("abound.versions.retention.VersionParams", ("keep", "total_bytes", "cache_bytes")),
}

G = TypeVar("G")

MIB = 2**20

SECRET_FILE_LIMIT = 65_536


class SettingDescription(NamedTuple):
    """One line of ``abound config``."""

    name: str
    value: str
    origin: str
    meaning: str
    plain: str | int | float | None
    """The value as JSON."""


class EnvironmentSource(PydanticBaseSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """False in the result: the value is plain text, not JSON."""
        found = _variable(field_name)
        return (found[0] if found else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, _, _ = self.get_field_value(field, name)
            if value is not None:
                values[name] = value
        return values


class Settings(BaseSettings):
    """All settings of the service, created by :meth:`load`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    processes: int = Field(1, ge=1, le=256, description="number of replicas, one process each, on the same port")
    data_dir: Path = Field(Path("data"), description="directory of the embedded store, artifacts and caches")
    encoders_dir: Path | None = Field(
        None, description="directory of encoders for analyzer.embed, each in a directory of its own"
    )
    encoder_hosts: str = Field(
        "localhost,127.0.0.1,[::1]",
        description="comma-separated hosts, or host:port, that the URL of analyzer.embed may name",
    )
    encoder_seconds: float = Field(10.0, gt=0, le=600, description="longest wait for a call of an encoder behind a URL")
    encoder_key: SecretStr | None = Field(None, description="key that is sent to encoders behind a URL, as Bearer")
    redis_url: SecretStr | None = Field(None, description="a Valkey or Redis to use instead of the embedded one")
    artifacts_url: SecretStr | None = Field(
        None,
        min_length=1,
        description="directory or fsspec URL for history, versions and jobs, shared by all hosts; "
        "[default: artifacts in data_dir with the embedded store, none with another]",
    )
    worker: bool = Field(True, description="run a worker along with the service")
    worker_kinds: str = Field(
        "replace,fit",
        pattern=r"^(none|(replace|fit)(,(replace|fit))*)$",
        description="comma-separated kinds of jobs that a worker runs, one job of each at once; none: snapshots only",
    )
    cluster: str | None = Field(
        None,
        pattern=r"^dask://[^/]+$",
        description="a Dask scheduler, dask://host:port, that runs batch methods on its workers",
    )
    insecure: bool = Field(False, description="allow listening on a public address without any API key")
    cors_origins: str = Field(
        "", description="comma-separated origins, as https://app.example.com, whose web pages may send requests"
    )

    max_body_bytes: int = Field(16 * MIB, ge=1024, description="most bytes in the body of a request")
    max_batch: int = Field(1000, ge=1, description="most instances in a batch")
    max_ndjson_lines: int = Field(100_000, ge=1, description="most lines in an NDJSON request")
    max_ndjson_bytes: int = Field(64 * MIB, ge=1024, description="most bytes in an NDJSON request")
    max_import_bytes: int = Field(4096 * MIB, ge=1024, description="most bytes in the file of an imported model")
    max_models: int = Field(1000, ge=1, le=100_000, description="most models that can be created")
    default_update: Literal["fsu", "sls"] = Field(
        "fsu", description="update rule of a new model that names none: fsu is fast and small, sls more accurate"
    )
    max_memory: int | None = Field(
        None,
        ge=2**20,
        description="bytes of memory for all models of a replica; [default: 80 % of the machine's memory, divided "
        "among its replicas (1 part each), the worker (4 parts) and the embedded store (3 parts)]",
    )

    durability: Literal["log", "fsync", "replica"] = Field(
        "log", description="durability of learned events when they are answered"
    )
    prepare_seconds: float = Field(
        300.0, gt=0, le=86_400, description="longest wait for replicas to load what replaces a model"
    )
    undo_seconds: float = Field(
        7 * 86_400.0, ge=0, description="how long a replaced model is kept, so that the replacement can be undone"
    )
    max_staleness: float | None = Field(None, gt=0, description="seconds without the log after which /readyz fails")

    keep_alive_seconds: int = Field(
        75, ge=1, description="time until a connection that is idle or does not read is closed"
    )
    drain_seconds: float = Field(0.0, ge=0, le=600, description="time between /readyz failing and closing, on stopping")
    stop_seconds: float = Field(10.0, gt=0, le=600, description="longest wait for open requests on stopping")

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level of log lines")
    log_format: Literal["text", "json"] = Field("text", description="format of log lines on standard error")
    access_log: bool = Field(False, description="write a log line for every request")
    tracing: bool = Field(
        False,
        description="send a trace of every request to OpenTelemetry, which OTEL_ variables set up; "
        "needs the extra otel",
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def web_origins(self) -> list[str]:
        """The origins in ``cors_origins``."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @field_validator("redis_url")
    @classmethod
    def _is_a_store(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        url = urlsplit(value.get_secret_value())
        if url.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        if url.scheme != "unix" and "@" in url.path + url.query + url.fragment:
            raise ValueError("has a password with / ? or #; write %2F, %3F or %23 in their place")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, EnvironmentSource(settings_cls)

    @classmethod
    def load(cls, **options: Any) -> Settings:
        """Load the settings from ``options`` (None counts as unset), the environment and the defaults.

        Raises WrongSetting; the text names the variable and never shows a secret.
        """
        given = {name: value for name, value in options.items() if value is not None}
        try:
            settings = cls(**given)
        except ValidationError as error:
            raise WrongSetting("; ".join(_sentences(error, given))) from None
        for name in cls.model_fields:
            found = _variable(name)
            settings._origins[name] = "command line" if name in given else found[1] if found else "default"
        return settings

    def group(self, kind: type[G]) -> G:
        """Return a dataclass listed in ``GROUPS``, from the environment and its defaults.

        Raises WrongSetting, with the variable's name, when a value is out of range.
        """
        path = f"{kind.__module__}.{kind.__qualname__}"
        name, names = next((name, group.names) for name, group in GROUPS.items() if group.path == path)
        given = {part: found[0] for part in names if (found := _variable(f"{name}_{part}"))}
        try:
            return TypeAdapter(kind).validate_python(given)
        except ValidationError as error:
            raise WrongSetting("; ".join(_sentences(error, (), f"{name}_"))) from None

    def store_url(self) -> str:
        """Return the URL of the store with its password; raise CannotStart when it is unset."""
        if self.redis_url is None:
            raise CannotStart("ABOUND_REDIS_URL is not set; `abound serve` sets it for the processes that it starts")
        return self.redis_url.get_secret_value()

    @property
    def job_kinds(self) -> list[str]:
        return [kind for kind in dict.fromkeys(self.worker_kinds.split(",")) if kind != "none"]

    def artifacts_location(self) -> str | None:
        if self.artifacts_url is not None:
            return self.artifacts_url.get_secret_value()
        return str(self.data_dir.resolve() / "artifacts") if self.redis_url is None else None

    def environment(self) -> dict[str, str]:
        """Return these settings as variables for a child process, without the groups. Contains secrets."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {_variable_name(name): _text(value) for name, value in values.items() if value is not None}

    def child_environment(self) -> dict[str, str]:
        """Return the environment of this process, updated with these settings. Contains secrets.

        A setting that came from a file becomes a plain variable, and its ``_FILE`` variable is removed: both would be
        refused.
        """
        values = self.environment()
        files = {f"{variable}_FILE" for variable in values}
        return {name: value for name, value in os.environ.items() if name not in files} | values

    def describe(self) -> list[SettingDescription]:
        """Return every setting with its value and origin, including the groups. Passwords are masked."""
        described = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            shown = mask_password(value.get_secret_value()) if isinstance(value, SecretStr) else _text(value)
            shown = "***" if value is not None and name.endswith("_key") else shown
            origin = self._origins.get(name, "default")
            described.append(SettingDescription(name, shown, origin, field.description or "", _plain(value, shown)))
        for group, (path, names) in GROUPS.items():
            module, _, class_name = path.rpartition(".")
            kind = getattr(import_module(module), class_name)
            values, meanings = self.group(kind), field_descriptions(kind)
            for part in names:
                found = _variable(f"{group}_{part}")
                value = getattr(values, part)
                shown, origin = _text(value), found[1] if found else "default"
                meaning = meanings.get(part, "").replace("``", "`")
                described.append(SettingDescription(f"{group}_{part}", shown, origin, meaning, _plain(value, shown)))
        return described

    def check_exposure(self, has_keys: bool = False) -> None:
        """Raise CannotStart when the service would listen publicly without a key and without ``insecure``."""
        if not (has_keys or self.insecure or is_loopback(self.host)):
            raise CannotStart(
                f"listening on {self.host} would let anyone who can reach this machine read and teach the models, "
                "since there is no key. Create one (abound keys create --scope admin), listen on 127.0.0.1, or set "
                "--insecure (ABOUND_INSECURE=true) if a proxy in front of the service checks keys"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def mask_password(url: str) -> str:
    """Return ``url`` with ``***`` in place of a password, including one in the query."""
    location = urlsplit(url).netloc
    user, colon, _ = location.rpartition("@")[0].partition(":")
    if colon:
        url = url.replace(location, f"{user}:***@{location.rpartition('@')[2]}", 1)
    return re.sub(r"(?<=[?&]password=)[^&#]*", "***", url)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ``ABOUND_`` variable that is not a setting, with the most similar setting."""
    ours = [*READ_ELSEWHERE, *(_variable_name(name) for name in Settings.model_fields)]
    ours += [_variable_name(f"{group}_{part}") for group, (_, names) in GROUPS.items() for part in names]
    sentences = []
    for variable in sorted(environment):
        plain = variable.removesuffix("_FILE")
        if not variable.startswith(PREFIX) or plain in ours:
            continue
        near = difflib.get_close_matches(plain, ours, n=1, cutoff=0.0)[0]
        sentences.append(f"{variable} is not a setting and is ignored; the nearest one is {near}")
    return sentences


def field_descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the description of each field from the *Attributes* sections of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        section = inspect.cleandoc(one.__doc__ or "").partition("Attributes\n----------\n")[2]
        own: dict[str, str] = {}
        names: list[str] = []
        for line in section.splitlines():
            if line[:1].strip():
                names = re.split(r",\s*", line.partition(" : ")[0])
            elif line.strip():
                for name in names:
                    own[name] = f"{own.get(name, '')} {line.strip()}".strip()
        found |= own
    return found


def _variable_name(name: str) -> str:
    return PREFIX + name.upper()


def _variable(name: str) -> tuple[str, str] | None:
    variable = _variable_name(name)
    text, path = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE", "")
    if text and path:
        raise WrongSetting(f"set {variable} or {variable}_FILE, not both")
    if not path:
        return (text, variable) if text else None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SECRET_FILE_LIMIT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"{variable}_FILE: cannot read {path}: {error}") from None
    if not text.strip() or len(text) > SECRET_FILE_LIMIT:
        raise WrongSetting(f"{variable}_FILE: {path} is empty or larger than {SECRET_FILE_LIMIT} characters")
    return text.strip(), f"{variable}_FILE"


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _plain(value: object, shown: str) -> str | int | float | None:
    return value if value is None or isinstance(value, (int, float)) else shown


def _sentences(error: ValidationError, given: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Yield one sentence for each error, with the option or variable at fault and without its value."""
    for problem in error.errors(include_input=False, include_url=False):
        name = "_".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            yield f"{name} is not a setting"
        elif name in given:
            yield f"--{name.replace('_', '-')}: {message[:1].lower()}{message[1:]}"
        else:
            yield f"{_variable_name(prefix + name).rstrip('_')}: {message[:1].lower()}{message[1:]}"
