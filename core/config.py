"""The configuration of a model: a frozen dataclass that validates itself.

Every default of a model is defined here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from abound.core.errors import InvalidInstance

FIXED_AFTER_LEARNING = ("update", "rows", "idf", "boolean", "analyzer", "negative", "leak", "memory")
"""Fields that cannot change on a model that has learned, because its state would get another meaning."""

VECTOR_FIELDS = ("boolean", "analyzer", "negative")
"""Fields that decide how an instance becomes a vector. A log of vectors cannot be replayed with other values."""

OMITTED_DEFAULTS = {"calibrate": False, "rows": False}
"""Fields added in later releases, each with its value in configurations that do not have the field.

A field with this value is not stored. Stored configurations and their digests therefore stay the same, and earlier
releases can read them.
"""

MAX_COUNT = 2**31 - 1
LEAST_MEMORY, MOST_MEMORY = 2**20, 2**50


def _refuse(field: str, detail: str) -> None:
    raise InvalidInstance(f"{field} {detail}", field)


def _number(field: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        _refuse(field, f"must be a number from {low:g} to {high:g}")


def _whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        _refuse(field, f"must be a whole number from {low} to {high}")


def _flag(field: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(field, "must be true or false")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerConfig:
    """The rules that turn text into terms.

    Attributes
    ----------
    kind : ``word`` | ``char`` | ``char_wb``
        Words (runs of letters, digits and ``_``), characters, or characters inside word bounds.
    ngrams : (low, high)
        Shortest and longest n-gram of words or characters, 1 to 8.
    lowercase : bool
    strip_accents : bool
        Remove accents and other marks from letters.
    min_length : int
        Skip words shorter than this (only ``word``).
    stop_words : ``english`` | None
        Skip scikit-learn's list of English stop words (only ``word``).
    """

    kind: Literal["word", "char", "char_wb"] = "word"
    ngrams: tuple[int, int] = (1, 1)
    lowercase: bool = True
    strip_accents: bool = False
    min_length: int = 1
    stop_words: Literal["english"] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("word", "char", "char_wb"):
            _refuse("analyzer.kind", "must be word, char or char_wb")
        if not isinstance(self.ngrams, (tuple, list)) or len(self.ngrams) != 2:
            _refuse("analyzer.ngrams", "must be two numbers, the shortest and the longest length")
        for length in self.ngrams:
            _whole("analyzer.ngrams", length, 1, 8)
        if self.ngrams[0] > self.ngrams[1]:
            _refuse("analyzer.ngrams", "must have the shortest length first")
        object.__setattr__(self, "ngrams", tuple(self.ngrams))
        _flag("analyzer.lowercase", self.lowercase)
        _flag("analyzer.strip_accents", self.strip_accents)
        _whole("analyzer.min_length", self.min_length, 1, 64)
        if self.stop_words not in (None, "english"):
            _refuse("analyzer.stop_words", "must be null or english")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The settings of a model. The paper is Madani, Connor and Greiner (JMLR 2009).

    Attributes
    ----------
    update : ``fsu`` | ``sls``
        The Feature Streaming Update of the paper, section 4.2, or sparse least squares. The latter is more accurate
        on nearly all data and has weights of either sign. It learns at about half and ranks at about a third of the
        speed.
    eta : float, 0.001 to 10
        ``sls``: step size of a connection that was never corrected. It falls with every correction, to a tenth.
    slots : int, 1 to 1024
        ``sls``: maximum number of connections of a feature; up to 1,024 as long as all features share 131,072.
    rows : bool
        ``sls``: use dense rows while the model is small and its instances have two or more labels on average: a
        weight for every feature and class, and an intercept for every class. This is more accurate and learns faster.
        Always false with ``fsu``.
    idf : bool
        ``sls``: weigh features by their inverse frequency so far. Use false for vectors that already carry such
        weights.
    w_min : float, 0 to 1
        Drop connections with a smaller weight. With 0 a feature keeps its 65,535 heaviest connections.
    d_max : int, 1 to 65535
        Only the heaviest ``d_max`` connections of a feature vote.
    margin : float >= 0
        Update a true class unless its score exceeds the best other score by more than this.
    leak : bool
        Keep the weight of dropped connections in the feature's total (section 6.3.5).
    rating : bool
        Features seen fewer than ten times vote less (section 4.3.2).
    boolean : bool
        Every active feature has the value 1, and vectors are not normalised.
    memory : float or None
        Horizon of the adaptive update, in feature weight. The total of a feature never exceeds it, so weights become
        exponentially weighted means. None: the plain running mean of the paper.
    max_features : int or None
        Maximum number of features; beyond it, each new feature evicts one.
    max_classes : int or None
        Maximum number of classes; a new class beyond it is refused.
    max_memory : int or None
        Bytes of memory that the model may use in a replica, at least 1 MiB. At the limit the model stops learning.
    analyzer : AnalyzerConfig
    negative : ``ignore`` | ``split``
        Ignore negative numbers, as in the paper, or turn them into the feature ``name=-`` with the absolute value.
    calibrate : bool
        Learn to convert scores into probabilities. Can be turned on and off at any time; each start begins from zero.
    """

    update: Literal["fsu", "sls"] = "fsu"
    eta: float = 0.6
    slots: int = 64
    rows: bool = True
    idf: bool = True
    w_min: float = 0.01
    d_max: int = 25
    margin: float = 0.0
    leak: bool = True
    rating: bool = True
    boolean: bool = False
    memory: float | None = None
    max_features: int | None = None
    max_classes: int | None = None
    max_memory: int | None = None
    analyzer: AnalyzerConfig = AnalyzerConfig()
    negative: Literal["ignore", "split"] = "ignore"
    calibrate: bool = False

    def __post_init__(self) -> None:
        if self.update not in ("fsu", "sls"):
            _refuse("update", "must be fsu or sls")
        if self.update == "sls" and self.memory is not None:
            _refuse("memory", "is for update fsu; sls forgets by its step, which never falls below a tenth of eta")
        _number("eta", self.eta, 1e-3, 10.0)
        _whole("slots", self.slots, 1, 1024)
        _number("w_min", self.w_min, 0.0, 1.0)
        _whole("d_max", self.d_max, 1, 65_535)
        _number("margin", self.margin, 0.0, 1e9)
        for name in ("rows", "idf", "leak", "rating", "boolean", "calibrate"):
            _flag(name, getattr(self, name))
        if self.memory is not None:
            _number("memory", self.memory, 1e-6, 1e12)
        if self.max_features is not None:
            _whole("max_features", self.max_features, 1, MAX_COUNT)
        if self.max_classes is not None:
            _whole("max_classes", self.max_classes, 1, MAX_COUNT)
        if self.max_memory is not None:
            _whole("max_memory", self.max_memory, LEAST_MEMORY, MOST_MEMORY)
        if not isinstance(self.analyzer, AnalyzerConfig):
            _refuse("analyzer", "must be an object")
        if self.negative not in ("ignore", "split"):
            _refuse("negative", "must be ignore or split")
        if self.update != "sls":
            object.__setattr__(self, "rows", False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values; ``from_dict`` returns an equal configuration."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        analyzer = {field.name: getattr(self.analyzer, field.name) for field in fields(self.analyzer)}
        return plain | {"analyzer": analyzer | {"ngrams": list(self.analyzer.ngrams)}}

    def to_stored(self) -> dict[str, Any]:
        """Return ``to_dict`` in its stored form, without the fields that have their value of ``OMITTED_DEFAULTS``."""
        return {
            name: value
            for name, value in self.to_dict().items()
            if name not in OMITTED_DEFAULTS or value != OMITTED_DEFAULTS[name]
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ModelConfig:
        """Return the defaults with the given fields replaced.

        Raises InvalidInstance for an unknown field or a bad value.
        """
        return cls().with_user_changes(plain)

    @classmethod
    def from_stored(cls, plain: dict[str, Any]) -> ModelConfig:
        """Read the output of ``to_stored``, of this release or an earlier one. Raises like ``from_dict``."""
        return cls().with_changes(OMITTED_DEFAULTS | plain)

    def with_user_changes(self, changes: dict[str, Any]) -> ModelConfig:
        """Return this configuration with the changes of a user: ``with_changes`` after ``with_implied_changes``."""
        return self.with_changes(self.with_implied_changes(changes))

    def with_implied_changes(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the changes to write into the log, with the default that depends on another field filled in.

        A model that switches to ``sls`` uses rows unless the changes say otherwise. Log entries of earlier releases
        have no ``rows`` and are applied without it.

        Raises
        ------
        InvalidInstance
            The changes enable rows, and the update is not ``sls``.
        """
        if changes.get("rows") is True and changes.get("update", self.update) != "sls":
            _refuse("rows", "is for update sls")
        becomes = self.update != "sls" and changes.get("update") == "sls"
        return {"rows": ModelConfig(update="sls").rows} | changes if becomes else changes

    def with_changes(self, changes: dict[str, Any]) -> ModelConfig:
        """Return this configuration with some fields changed; fields that are not named keep their value.

        Raises
        ------
        InvalidInstance
            A field is unknown or its value is out of range.
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                _refuse(str(name), "is not a field of a model's configuration")
        values = dict(changes)
        if isinstance(values.get("analyzer"), dict):
            parts = {field.name for field in fields(AnalyzerConfig)}
            for name in values["analyzer"]:
                if name not in parts:
                    _refuse(f"analyzer.{name}", "is not a field of an analyzer")
            values["analyzer"] = replace(self.analyzer, **values["analyzer"])
        return replace(self, **values)

    def refused_once_learned(self, other: ModelConfig) -> list[str]:
        """Return the names of the fields that differ in ``other`` and cannot change on a model that has learned."""
        return [name for name in FIXED_AFTER_LEARNING if getattr(self, name) != getattr(other, name)]
