"""The settings of the service: the one place where they are named, checked and given defaults.

A value comes from the command line, else from the environment variable ``ABOUND_<NAME>``, else from the file that
``ABOUND_<NAME>_FILE`` names (so that a secret need not stand in the environment), else from the default here. An
empty variable counts as not set. A group of settings (a dataclass that stands beside the code it steers) is reached
as ``ABOUND_<GROUP>_<NAME>``.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from core.errors import CannotStart

PREFIX = "ABOUND_"

READ_ELSEWHERE = ("ABOUND_DATA", "ABOUND_URL", "ABOUND_KEY")
"""Variables of ours that the service does not read: where the tests' data sets are, the client's URL and key."""

MIB = 2**20

SECRET_FILE_LIMIT = 65_536


class Described(NamedTuple):
    """One line of ``abound config``."""

    name: str
    value: str
    origin: str
    meaning: str


class EnvironmentSource(PydanticBaseSettingsSource):
    """Reads ``ABOUND_*`` and ``ABOUND_*_FILE`` for the fields of :class:`Settings`."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one field (None: not set), its name, and whether it is a group."""
        value: Any
        if is_dataclass(field.annotation):
            parts = {part.name: _variable(f"{field_name}_{part.name}") for part in fields(field.annotation)}
            value = {name: found[0] for name, found in parts.items() if found is not None}
            return value or None, field_name, True
        found = _variable(field_name)
        return (found[0] if found else None), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Everything that the environment sets."""
        values: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, _, _ = self.get_field_value(field, name)
            if value is not None:
                values[name] = value
        return values


class Settings(BaseSettings):
    """Everything that can be set about the service. :meth:`load` makes one."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    processes: int = Field(1, ge=1, le=256, description="replicas, a process each, on the one port")
    data_dir: Path = Field(Path("data"), description="directory of the embedded store")
    redis_url: SecretStr | None = Field(None, description="a Valkey or Redis to use instead of the embedded one")
    worker: bool = Field(True, description="run a worker beside the service")
    insecure: bool = Field(False, description="listen on an address that others can reach, without any key")

    max_body_bytes: int = Field(16 * MIB, ge=1024, description="largest body of a request")
    max_batch: int = Field(1000, ge=1, description="most instances in a batch")
    max_ndjson_lines: int = Field(100_000, ge=1, description="most lines in an NDJSON request")
    max_ndjson_bytes: int = Field(64 * MIB, ge=1024, description="largest NDJSON request")
    max_header_bytes: int = Field(65_536, ge=1024, description="largest head of a request")
    max_connections: int = Field(10_000, ge=1, description="most connections a replica holds at once")

    wait_seconds: float = Field(10.0, gt=0, le=600, description="longest wait for an event to be applied")
    min_offset_seconds: float = Field(5.0, ge=0, le=600, description="longest wait for min_offset to be reached")
    durability: Literal["log", "fsync", "replica"] = Field("log", description="level when a request names none")
    max_staleness: float | None = Field(None, gt=0, description="seconds cut off from the log before unready")
    remember_seconds: int = Field(86_400, ge=1, description="how long an instance is remembered for a late label")
    max_remembered: int = Field(100_000, ge=1, description="most instances remembered, a model")

    keep_alive_seconds: int = Field(75, ge=1, description="how long an idle connection is kept")
    drain_seconds: float = Field(0.0, ge=0, le=600, description="unready but still answering, before closing")
    stop_seconds: float = Field(10.0, gt=0, le=600, description="longest wait for requests in flight on stopping")

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level of log lines")
    log_format: Literal["text", "json"] = Field("text", description="form of log lines on standard error")

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("redis_url")
    @classmethod
    def _is_a_store(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and urlsplit(value.get_secret_value()).scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
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
        """The command line, then the environment; no other place."""
        return init_settings, EnvironmentSource(settings_cls)

    @classmethod
    def load(cls, **options: Any) -> Settings:
        """Settings from ``options`` (a None counts as not given), the environment and the defaults.

        Raises
        ------
        CannotStart
            A value is out of range or a file cannot be read; names the variable and never shows a secret.
        """
        given = {name: value for name, value in options.items() if value is not None}
        try:
            settings = cls(**given)
        except ValidationError as error:
            raise CannotStart("; ".join(_sentences(error, given))) from None
        for name, _, origin in _leaves(settings):
            settings._origins[name] = "command line" if name in given else origin
        return settings

    def store_url(self) -> str:
        """The URL of the store, password and all; CannotStart when there is none."""
        if self.redis_url is None:
            raise CannotStart("ABOUND_REDIS_URL is not set; `abound serve` sets it for what it starts")
        return self.redis_url.get_secret_value()

    def environment(self) -> dict[str, str]:
        """These settings as variables, for a child process. Holds secrets."""
        return {_variable_name(name): _text(value) for name, value, _ in _leaves(self) if value is not None}

    def describe(self) -> list[Described]:
        """Every setting with its value and where it comes from; secrets masked."""
        described = []
        for name, value, origin in _leaves(self):
            field = type(self).model_fields.get(name)
            shown = masked(value.get_secret_value()) if isinstance(value, SecretStr) else _text(value)
            meaning = (field.description if field else None) or ""
            described.append(Described(name, shown, self._origins.get(name, origin), meaning))
        return described

    def check_exposure(self) -> None:
        """CannotStart when the service would listen beyond this machine without a key and was not told to."""
        if not self.insecure and not is_loopback(self.host):
            raise CannotStart(
                f"listening on {self.host} would let everybody who reaches this machine read and teach the models, "
                "since there is no key. Listen on 127.0.0.1, or say --insecure (ABOUND_INSECURE=true) if something "
                "in front of the service asks for keys"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def masked(url: str) -> str:
    """``url`` with ``***`` in the place of a password, also of one among the query's parameters."""
    location = urlsplit(url).netloc
    user, colon, _ = location.rpartition("@")[0].partition(":")
    if colon:
        url = url.replace(location, f"{user}:***@{location.rpartition('@')[2]}", 1)
    return re.sub(r"(?<=[?&]password=)[^&#]*", "***", url)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that begins with ``ABOUND_`` and means nothing, with the nearest that does."""
    known = {_variable_name(name): None for name in _leaf_names()}
    sentences = []
    for variable in sorted(environment):
        plain = variable.removesuffix("_FILE")
        if not variable.startswith(PREFIX) or plain in known or variable in READ_ELSEWHERE:
            continue
        near = difflib.get_close_matches(plain, [*known, *READ_ELSEWHERE], n=1, cutoff=0.0)
        sentences.append(f"{variable} is not a setting and is ignored; the nearest one is {near[0]}")
    return sentences


def _variable_name(name: str) -> str:
    return PREFIX + name.upper()


def _variable(name: str) -> tuple[str, str] | None:
    """The text that the environment gives for a setting and the variable it comes from; None when it gives none."""
    variable = _variable_name(name)
    text, path = os.environ.get(variable, ""), os.environ.get(f"{variable}_FILE", "")
    if text and path:
        raise CannotStart(f"set {variable} or {variable}_FILE, not both")
    if not path:
        return (text, variable) if text else None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SECRET_FILE_LIMIT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"{variable}_FILE: cannot read {path}: {error}") from None
    if not text.strip() or len(text) > SECRET_FILE_LIMIT:
        raise CannotStart(f"{variable}_FILE: {path} is empty or larger than {SECRET_FILE_LIMIT} characters")
    return text.strip(), f"{variable}_FILE"


def _leaf_names() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        if is_dataclass(field.annotation):
            yield from (f"{name}_{part.name}" for part in fields(field.annotation))
        else:
            yield name


def _leaves(settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """(name, value, where the environment has it from) of each setting, groups taken apart."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        parts = [(name, value)]
        if is_dataclass(value):
            parts = [(f"{name}_{part.name}", getattr(value, part.name)) for part in fields(value)]
        for leaf, inner in parts:
            found = _variable(leaf)
            yield leaf, inner, found[1] if found else "default"


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _sentences(error: ValidationError, given: Iterable[str]) -> Iterator[str]:
    """What is wrong, one sentence a setting, by the name under which it was given; values are left out of it."""
    for problem in error.errors(include_input=False, include_url=False):
        name = "_".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            yield f"{name} is not a setting"
        elif name in given:
            yield f"--{name.replace('_', '-')}: {message[:1].lower()}{message[1:]}"
        else:
            yield f"{_variable_name(name)}: {message[:1].lower()}{message[1:]}"
