"""The configuration of a model: a frozen dataclass that validates itself, with every default of a model."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta

from abound_core.errors import Contradiction, InvalidInstance, did_you_mean
from abound_core.limits import MAX_DIMENSION, MAX_FIELD_NAME

FIXED_AFTER_LEARNING = (
    "update",
    "rows",
    "idf",
    "boolean",
    "analyzer",
    "negative",
    "numbers",
    "normalize",
    "leak",
    "memory",
    "codes",
    "known",
)
"""Fields that cannot change on a model that has learned, because its state would get another meaning."""

VECTOR_FIELDS = ("boolean", "analyzer", "negative", "numbers", "normalize")
"""Fields that decide how an instance becomes a vector. A log of vectors cannot be replayed with other values."""

BEFORE: dict[str, Any] = {
    "numbers": "raw",
    "rerank": False,
    "normalize": False,
    "known": False,
    "calibrate": False,
    "recovery": 0.0,
}
"""Values of fields that a stored configuration may lack, where the default of new models is another one."""

MAX_COUNT = 2**31 - 1

# fmt: off
Stemmed = Literal[
    "ar", "ca", "cs", "da", "de", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fr", "ga", "hi", "hu", "hy", "id",
    "it", "lt", "ne", "nl", "no", "pl", "pt", "ro", "ru", "sr", "st", "sv", "ta", "tr", "yi",
]
# fmt: on

ROWS = "sls: a small model with many labels keeps a weight for every feature and class, and an intercept per class."
MAX_CLASSES = (
    "Classes beyond this number are refused. A replica counts its own pending requests but not those of other "
    "replicas, so several replicas can exceed the bound by the new classes of their pending requests."
)

NUMBERS = (
    "Numbers beside texts and other features: bounded in size, so that no number outweighs them, with the values of "
    "few digits as features of their own (`exact`) or without (`scaled`); or as they are (`raw`)."
)

NORMALIZE = (
    "Labels, and names and strings of features, are trimmed and get one form of Unicode (NFC, without invisible "
    "characters, with one kind of space); texts are compared by case folding instead of lower case."
)

RERANK = (
    "sls: learn to order the best classes of an instance with a vector; null: from the first vector on. Can change at "
    "any time."
)

KNOWN = "sls: learn which labels go together, for `known` in `/classify`."

IMPLICIT = "Weight with which ignored labels are learned, relative to rejected ones; 0: they are only counted."


def _refuse(field: str, detail: str) -> None:
    raise InvalidInstance(f"{field} {detail}", field)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _check_fields(config: Any, prefix: str = "") -> None:
    for name, hint in _hints(config.__class__).items():
        _check(prefix + name, getattr(config, name), hint)


def _check(field: str, value: object, hint: Any) -> None:
    bounds: Any = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    is_optional = NoneType in get_args(hint)
    kind = get_args(hint)[0] if is_optional else hint
    if is_optional and type(value) in get_args(hint)[1:]:  # None, or a dataclass that has checked itself
        return
    if get_origin(kind) is Literal and (value not in get_args(kind) or type(value) is not type(get_args(kind)[0])):
        names = ["null"] * is_optional + [str(name) for name in get_args(kind)]
        _refuse(field, f"must be {', '.join(names[:-1])} or {names[-1]}")
    elif kind is bool and not isinstance(value, bool):
        _refuse(field, "must be true or false")
    elif kind is int and not _is_number(value, int, bounds):
        _refuse(field, f"must be a whole number from {bounds.ge} to {bounds.le}")
    elif kind is str and not (isinstance(value, str) and re.fullmatch(bounds.pattern, value)):
        _refuse(field, f"must be {bounds.title}")
    elif kind is float and not _is_number(value, (int, float), bounds):
        _refuse(field, f"must be a number from {bounds.ge:g} to {bounds.le:g}")


def _is_number(value: Any, kinds: Any, bounds: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    return bool(bounds.ge <= value <= bounds.le)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderUrl:
    """An encoder behind a URL, with the embeddings API of OpenAI. The service asks for the dimension."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?(/[A-Za-z0-9._~%/:-]{0,250})?$",
            title="http://host:port/path or https://host/path, without a user, a query and a fragment",
            description="URL of an endpoint with the embeddings API of OpenAI.",
        ),
    ]
    model: Annotated[
        str,
        Meta(
            pattern="^[!-~]{1,200}$",
            title="a name of 1 to 200 visible ASCII characters",
            description="Name of the model that the endpoint is asked for.",
        ),
    ]
    dimension: Annotated[
        int | None, Meta(ge=1, le=MAX_DIMENSION, description="Numbers of a vector, as the endpoint answers.")
    ] = None

    def __post_init__(self) -> None:
        _check_fields(self, "analyzer.embed.")

    @property
    def authority(self) -> str:
        """Host and port, in lower case."""
        scheme, _, rest = self.url.lower().partition("://")
        named = rest.partition("/")[0]
        return named if re.search(":[0-9]+$", named) else f"{named}:{443 if scheme == 'https' else 80}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerConfig:
    """The rules that turn text into terms.

    With ``unicode`` boundaries a word is a run of letters, marks, digits and ``_``, such as ``wheat_2``. It keeps the
    signs of ``c++``, ``c#``, ``.net``, ``#tag`` and ``@user``. Scripts without spaces (Han, kana, Thai, Lao, Khmer,
    Myanmar) give pairs of characters with their marks, and each emoji is a term. Compatibility forms such as full-width
    letters are replaced (NFKC). With ``simple`` boundaries a word is a run of letters, digits and ``_``.

    ``boundaries``, ``min_length``, ``stop_words``, ``stem`` and ``prefix`` are only for words. The stop words are
    scikit-learn's list, which needs the extra ``sklearn``.
    """

    kind: Annotated[
        Literal["word", "char", "char_wb"],
        Meta(description="Words, characters, or characters within word boundaries."),
    ] = "word"
    boundaries: Annotated[
        Literal["unicode", "simple"],
        Meta(description="Words of every script, or runs of letters, digits and `_`."),
    ] = "unicode"
    ngrams: tuple[int, int] = (1, 1)
    lowercase: bool = True
    strip_accents: Annotated[bool, Meta(description="Remove accents and other marks from letters.")] = False
    min_length: Annotated[int, Meta(ge=1, le=64, description="Shorter words are ignored.")] = 1
    stop_words: Annotated[
        Literal["english"] | None, Meta(description="Ignore English stop words; needs the extra `sklearn`.")
    ] = None
    html: Annotated[
        bool, Meta(description="Texts are HTML: markup, scripts and styles are removed, the `alt` of images stays.")
    ] = False
    stem: Annotated[
        Stemmed | None,
        Meta(description="Words: match their forms, by the Snowball stemmer of this language, such as `en`."),
    ] = None
    prefix: Annotated[
        int | None,
        Meta(ge=3, le=64, description="Words: the first characters of a longer one count as well, after `stem`."),
    ] = None
    embed: Annotated[
        str | EncoderUrl | None,
        Meta(
            pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            title="a name of at most 64 letters, digits, dots, hyphens and underscores, or an object with a url",
            description="sls: the encoder that makes the vector of a text, such as `wordllama`, or its URL and model.",
        ),
    ] = None
    embed_field: Annotated[
        str | None,
        Meta(
            pattern=f"^[^\\n]{{1,{MAX_FIELD_NAME}}}$",
            title=f"a name of 1 to {MAX_FIELD_NAME} characters",
            description="The encoder reads this field of a text alone, or the whole text if the field is missing or "
            "empty.",
        ),
    ] = None
    field_weight: Annotated[
        float,
        Meta(
            ge=0,
            le=4,
            description="Norm of the words of each field of a text, relative to all words; 0 ignores which field has a "
            "word.",
        ),
    ] = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.embed, dict):
            try:
                object.__setattr__(self, "embed", EncoderUrl(**self.embed))
            except TypeError:
                _refuse("analyzer.embed", "has the fields url and model, and may have dimension")
        _check_fields(self, "analyzer.")
        if not isinstance(self.ngrams, (tuple, list)) or len(self.ngrams) != 2:
            _refuse("analyzer.ngrams", "must be two numbers, the shortest and the longest length")
        for length in self.ngrams:
            _check("analyzer.ngrams", length, Annotated[int, Meta(ge=1, le=8)])
        if self.ngrams[0] > self.ngrams[1]:
            _refuse("analyzer.ngrams", "must have the shortest length first")
        object.__setattr__(self, "ngrams", tuple(self.ngrams))
        if self.prefix is not None and self.kind != "word":
            raise Contradiction(f"analyzer.prefix needs kind: word, and kind is {self.kind}", "analyzer.prefix")
        if self.embed_field is not None and self.embed is None:
            raise Contradiction("analyzer.embed_field needs an encoder in analyzer.embed", "analyzer.embed_field")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideConfig:
    """When a label may be applied without a person: ``abound_core/model/decision_kernels.py`` has the rules."""

    agreement: Annotated[
        float, Meta(ge=0.5, le=0.999, description="Share of the applied labels that shall be right.")
    ] = 0.95
    audit: Annotated[
        float, Meta(ge=0.01, le=1, description="Share of the answered instances whose true label is asked for, too.")
    ] = 0.05
    none: Annotated[
        float,
        Meta(ge=0, le=0.5, description="Share of the instances with a known label that may get `none`; 0: no `none`."),
    ] = 0.05
    coverage: Annotated[
        float, Meta(ge=0.5, le=0.999, description="Share of the deferred instances with a true label in `candidates`.")
    ] = 0.95

    def __post_init__(self) -> None:
        _check_fields(self, "decide.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The settings of a model. The paper is Madani, Connor and Greiner (JMLR 2009).

    ``fsu`` is the Feature Streaming Update of section 4.2. ``sls`` learns at about half and ranks at about a third of
    its speed, is more accurate on nearly all data, and has weights of either sign. Its step falls from ``eta`` with
    every correction, to a tenth; an error takes up to the share ``recovery`` of that back. Its ``slots`` may be up to
    1,024 as long as all features share 131,072.

    ``rows`` is used while the model is small and its instances have two or more labels on average; it is always
    false with ``fsu``. Use ``idf`` false for vectors that already carry such weights. With ``w_min`` 0 a feature
    keeps its 65,535 heaviest connections. ``leak`` is described in section 6.3.5, ``rating`` in section 4.3.2.

    The total of a feature never exceeds ``memory``, so weights become exponentially weighted means; None is the
    running mean of the paper. ``negative`` ``split`` turns a negative number into the feature ``name=-`` with the
    absolute value. ``numbers`` is described in ``abound_core.instances.vectorizer``; with ``boolean`` it has no
    effect. Each start of ``calibrate`` or ``rerank`` begins from zero. A ``rerank`` of None starts at the first vector.
    """

    update: Annotated[
        Literal["fsu", "sls"],
        Meta(description="The update rule: `fsu` is faster and smaller; `sls` is more accurate and learns vectors."),
    ] = "fsu"
    eta: Annotated[
        float, Meta(ge=1e-3, le=10, description="sls: the step of a connection that was never corrected.")
    ] = 0.6
    recovery: Annotated[
        float,
        Meta(ge=0, le=1, description="sls: how much longer steps become again where the model is wrong."),
    ] = 0.15
    slots: Annotated[
        int, Meta(ge=1, le=1024, description="sls: maximum connections per feature; more while features are few.")
    ] = 64
    rows: Annotated[bool, Meta(description=ROWS)] = True
    idf: Annotated[bool, Meta(description="sls: weight features by their inverse frequency so far.")] = True
    w_min: Annotated[float, Meta(ge=0, le=1, description="Connections with a smaller weight are dropped.")] = 0.01
    d_max: Annotated[int, Meta(ge=1, le=65_535, description="fsu: maximum connections of a feature that vote.")] = 25
    margin: Annotated[float, Meta(ge=0, le=1e9, description="Learn until the true class leads by more than this.")] = (
        0.0
    )
    leak: Annotated[bool, Meta(description="Keep the weight of dropped connections in the feature's total.")] = True
    rating: Annotated[bool, Meta(description="Features seen fewer than ten times vote less.")] = True
    boolean: Annotated[bool, Meta(description="Every active feature has the value 1; vectors are not normalised.")] = (
        False
    )
    memory: Annotated[
        float | None, Meta(ge=1e-6, le=1e12, description="Horizon of the adaptive update, in feature weight.")
    ] = None
    max_features: Annotated[
        int | None, Meta(ge=1, le=MAX_COUNT, description="Beyond it, each new feature replaces another.")
    ] = None
    max_classes: Annotated[int | None, Meta(ge=1, le=MAX_COUNT, description=MAX_CLASSES)] = None
    max_memory: Annotated[
        int | None, Meta(ge=2**20, le=2**50, description="Maximum bytes in a replica; a full model learns nothing.")
    ] = None
    analyzer: AnalyzerConfig = AnalyzerConfig()
    negative: Annotated[
        Literal["ignore", "split"],
        Meta(description="Ignore negative numbers, or make them features of their own."),
    ] = "ignore"
    numbers: Annotated[Literal["exact", "scaled", "raw"], Meta(description=NUMBERS)] = "exact"
    normalize: Annotated[bool, Meta(description=NORMALIZE)] = True
    codes: Annotated[
        Literal[4096, 16384],
        Meta(description="sls: number of features for vectors; 16384 for models with 10,000 classes and more."),
    ] = 4096
    rerank: Annotated[bool | None, Meta(description=RERANK)] = None
    known: Annotated[bool, Meta(description=KNOWN)] = True
    calibrate: Annotated[
        bool, Meta(description="Learn to convert scores to probabilities; can change at any time.")
    ] = True
    implicit: Annotated[float, Meta(ge=0, le=1, description=IMPLICIT)] = 0.0
    decide: DecideConfig | None = None

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.update == "sls" and self.memory is not None:
            raise Contradiction(
                "memory is for update fsu; sls forgets by its step, which never falls below a tenth of eta", "memory"
            )
        if not isinstance(self.analyzer, AnalyzerConfig):
            _refuse("analyzer", "must be an object")
        if not isinstance(self.decide, (DecideConfig, NoneType)):
            _refuse("decide", "must be an object or null")
        if self.update != "sls" and self.analyzer.embed is not None:
            raise Contradiction(
                f"analyzer.embed needs update: sls, and this model has update: {self.update}", "analyzer.embed"
            )
        if self.update != "sls":
            object.__setattr__(self, "rows", False)
            object.__setattr__(self, "rerank", False)
            object.__setattr__(self, "known", False)
            object.__setattr__(self, "recovery", 0.0)

    def to_dict(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        analyzer = {field.name: getattr(self.analyzer, field.name) for field in fields(self.analyzer)}
        if isinstance(self.analyzer.embed, EncoderUrl):
            analyzer["embed"] = asdict(self.analyzer.embed)
        decide = self.decide and {field.name: getattr(self.decide, field.name) for field in fields(self.decide)}
        return plain | {"analyzer": analyzer | {"ngrams": list(self.analyzer.ngrams)}, "decide": decide}

    @property
    def estimates(self) -> bool:
        """Whether scores are converted to probabilities."""
        return self.calibrate or self.decide is not None

    def changed_fields(self) -> dict[str, Any]:
        """Return the fields of ``to_dict`` that do not have their default or the value of ``BEFORE``.

        This includes the fields of the analyzer. A ``rerank`` of None is left out: it does nothing before the first
        vector. So a field that a later release adds changes nothing for the models that do not use it.
        """
        default, plain = ModelConfig(**BEFORE).to_dict(), self.to_dict()
        analyzer = {k: v for k, v in plain.pop("analyzer").items() if v != default["analyzer"][k]}
        changed = {k: v for k, v in plain.items() if v not in (default[k], None)}
        return changed | {"analyzer": analyzer} if analyzer else changed

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ModelConfig:
        return cls().with_user_changes(plain)

    @classmethod
    def from_stored(cls, plain: dict[str, Any]) -> ModelConfig:
        """Return the configuration that ``to_dict`` of this or an earlier release wrote. Raises InvalidInstance."""
        return cls.from_dict(BEFORE | plain)

    def with_user_changes(self, changes: dict[str, Any]) -> ModelConfig:
        """Return ``with_changes``.

        Raises InvalidInstance if ``rows``, ``rerank``, ``known`` or ``recovery`` is on and the update is not ``sls``.
        An event of the log is applied with ``with_changes``: the update may have changed since then.
        """
        for name in ("rows", "rerank", "known", "recovery"):
            if changes.get(name) and changes.get("update", self.update) != "sls":
                _refuse(name, "is for update sls")
        return self.with_changes(changes)

    def with_changes(self, changes: dict[str, Any]) -> ModelConfig:
        """Return this configuration with some fields changed; fields that are not named keep their value.

        A model that switches to ``sls`` uses rows, learns label sets, and re-ranks from the first vector on, unless the
        changes say otherwise.
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                _refuse(str(name), f"is not a field of a model's configuration{did_you_mean(str(name), known)}")
        switches = self.update != "sls" and changes.get("update") == "sls"
        of_sls = ModelConfig(update="sls") if switches else None
        own = {"rows", "rerank", "known", "recovery"} if of_sls else set()
        values = {name: getattr(of_sls, name) for name in own} | changes
        for group, present in (("analyzer", self.analyzer), ("decide", self.decide or DecideConfig())):
            if not isinstance(values.get(group), dict):
                continue
            parts = {field.name for field in fields(present)}
            for name in values[group]:
                if name not in parts:
                    _refuse(f"{group}.{name}", f"is not a field of {group}{did_you_mean(str(name), parts)}")
            embed, before = values[group].get("embed"), self.analyzer.embed
            if isinstance(embed, dict) and isinstance(before, EncoderUrl):
                values[group] = values[group] | {"embed": asdict(before) | embed}
            values[group] = replace(present, **values[group])
        return replace(self, **values)

    def refused_once_learned(self, other: ModelConfig) -> list[str]:
        return [name for name in FIXED_AFTER_LEARNING if getattr(self, name) != getattr(other, name)]
