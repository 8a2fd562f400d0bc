"""The vectorizer: rules, refusals, and the kernel against plain Python."""

import json
import math
import random
import re
import time
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numba import njit

from abound_core.config import AnalyzerConfig, ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances import json_kernels as reading
from abound_core.instances.decimals_kernels import read_number
from abound_core.instances.json_fallback import ActiveFeatures, read_json
from abound_core.instances.record import EMPTY_VECTOR, unpack_vector
from abound_core.instances.text_analyzer import Analyzer, term_weights
from abound_core.instances.vectorizer import Vectorizer, _Scratch
from abound_core.limits import Limits
from abound_core.numba.intrinsics import pointer
from tests.randomness import examples

SMALL = Limits(max_features=6, max_key_bytes=12, max_text_bytes=60)


def vectorizer(limits: Limits = Limits(), **config) -> Vectorizer:
    return Vectorizer(ModelConfig(**config), limits)


def taken_apart(vector: bytes) -> dict[str, float]:
    keys, values = unpack_vector(vector)
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values.tolist(), strict=True))


def plain(
    features: bytes,
    limits: Limits,
    split: bool,
    boolean: bool,
    scaled: int,
    normalize: bool = True,
    terms: list[str] | None = None,
) -> bytes:
    def empty() -> ActiveFeatures:
        return ActiveFeatures(limits, split, 0 if boolean else scaled, normalize)

    active, alone = empty(), empty()
    pairs = read_json(features)
    alone.add_pairs(pairs)
    usable = Counter([term for term in terms or () if len(term.encode()) <= limits.max_key_bytes])
    if len({term.encode() for term in usable} | alone.keys) > limits.max_features:
        kept = dict(usable.most_common(limits.max_features - len(alone.keys)))  # of equal counts, the first ones
        usable = Counter({term: count for term, count in usable.items() if term in kept})
    active.add_terms(term_weights(usable))
    active.add_pairs(pairs)
    return active.vector(boolean)[0]


def outcome(function, *arguments) -> bytes | tuple[str, str]:
    try:
        return function(*arguments)
    except InvalidInstance as error:
        return str(error), error.field


RAW, SCALED, SPLIT = {"numbers": "raw"}, {"numbers": "scaled"}, {"negative": "split"}
MANY = b'{"a": 0, ' + b", ".join([b'"b": 9999999999999999999e80'] * 1000) + b', "c": 1e101}'


@pytest.mark.parametrize(
    ("config", "features", "text", "values"),
    [
        ({}, b'{"wheat": 0.4, "n": 3, "in": "FI"}', None, {"wheat": 0.4, "n": 3, "in=FI": 1}),
        ({}, b'{"t": ["a", "b"], "yes": true, "no": false, "n": -1}', None, {"t=a": 1, "t=b": 1, "yes": 1}),
        (RAW, b'{"a": 1, "b": 2, "t": ["a", "a"]}', "B c b", {"b": 1 + math.log(2) + 2, "c": 1, "a": 1, "t=a": 2}),
        (SPLIT, b'{"a": -3, "b": 4, "c": -0.0}', None, {"a=-": 3, "b": 4}),
        ({}, b'{"a": 1100, "b": 0.5}', None, {"a": 3 / (1 + 2 / 1100), "a@10": 1, "a=1100": 0.5, "b": 0.5}),
        ({}, b'{"a": 12.50}', None, {"a": 3 / (1 + 2 / 12.5), "a@3": 1, "a=12.5": 0.5}),
        ({}, b'{"a": 1234.56}', None, {"a": 3 / (1 + 2 / 1234.56), "a@10": 1, "a=1234.56": 0.5}),
        ({}, b'{"a": 20.01}', None, {"a": 3 / (1 + 2 / 20.01), "a@4": 1, "a=20.01": 0.5}),
        ({}, b'{"a": 99999.99}', None, {"a": 3 / (1 + 2 / 99999.99), "a@16": 1}),  # too many digits
        ({}, b'{"a": 1.125}', None, {"a": 3 / (1 + 2 / 1.125), "a@0": 1}),
        (SCALED, b'{"a": 3, "b": 62.5}', None, {"a": 3, "b": 3 / (1 + 2 / 62.5), "b@5": 1}),
        ({}, b'{"a": 4, "b": 3, "c": "x"}', None, {"a": 4, "b": 3, "c=x": 1}),
        ({}, b'{"a": 16}', "b c", {"b": 1, "c": 1, "a": math.sqrt(2)}),  # a count is bounded beside a text
        (RAW, b'{"a": 1e300}', None, {"a": 1}),
        (RAW, b'{"a": 5e-324}', None, {"a": 1}),
        (RAW, b'{"b": 1e-300, "a": 1e300, "c": 1e300}', None, {"a": 1, "c": 1}),
        (RAW, b'{"a": 3e200, "b": 4e200}', None, {"a": 3, "b": 4}),
        (RAW, b'{"a": 3e-80, "b": 4e-80}', None, {"a": 3, "b": 4}),
        (RAW, b'{"a": 3e-80, "b": 9999999999999999999e80}', None, {"b": 1}),
        (RAW, MANY, None, {"b": 0.995037, "c": 0.0995037}),
        (RAW, b'{"a": 1, "b": 1e-44}', None, {"a": 1, "b": 9.8e-45}),
        (RAW, b'{"a": 1, "b": 1e-46}', None, {"a": 1}),
    ],
)
def test_values_before_the_vector_gets_the_length_1(config, features, text, values):
    found = taken_apart(vectorizer(**config).vectorize(features, text))
    norm = math.hypot(*values.values())
    assert found == pytest.approx({key: value / norm for key, value in values.items()}, rel=1e-6)
    assert list(found) == list(values)


FIELDS = {"title": "wheat up", "body": "wheat and prices of wheat"}


def test_words_of_a_field_are_features_of_their_own_and_shared():
    words = {"wheat": 1 + math.log(3), "and": 1.0, "prices": 1.0, "of": 1.0, "up": 1.0}
    fields = {
        "body": {"wheat": 1 + math.log(2), "and": 1.0, "prices": 1.0, "of": 1.0},
        "title": {"wheat": 1.0, "up": 1.0},
    }
    whole = math.hypot(*words.values())
    for weight in (0.5, 2.0):
        raw = words | {"country=FI": 1.0}
        for name, own in fields.items():
            raw |= {f"{name}:{word}": weight * whole * value / math.hypot(*own.values()) for word, value in own.items()}
        found = vectorizer(analyzer=AnalyzerConfig(field_weight=weight)).vectorize(b'{"country": "FI"}', FIELDS)
        norm = math.hypot(*raw.values())
        assert taken_apart(found) == pytest.approx({key: value / norm for key, value in raw.items()}, rel=1e-6)


def test_fields_are_one_instance_in_any_order_and_one_text_without_weight():
    backwards, plain = dict(reversed(FIELDS.items())), vectorizer(analyzer=AnalyzerConfig(field_weight=0))
    assert vectorizer().vectorize(None, FIELDS) == vectorizer().vectorize(None, backwards)
    assert plain.vectorize(None, FIELDS) == plain.vectorize(None, f"{FIELDS['body']} {FIELDS['title']}")
    pairs = vectorizer(analyzer=AnalyzerConfig(ngrams=(2, 2)))
    assert set(taken_apart(pairs.vectorize(None, {"a": "one two", "b": "three"}))) == {"one two", "a:one two"}


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"": "a"}, "text", "1 to 64 characters"),
        ({"a" * 65: "a"}, "text", "1 to 64 characters"),
        ({"a\ud800": "a"}, "text", "1 to 64 characters"),
        ({str(i): "a" for i in range(17)}, "text", "at most 16 fields, not 17"),
        ({"title": "\ud800"}, "text.title", "surrogate"),
        ({"title": "a" * 61}, "text.title", "at most 60 bytes"),
        ({"title": "a" * 40, "body": "a" * 40}, "text", "at most 60 characters in all fields, not 80"),
        ({"title": "a", "title ": "b"}, "text", "the field 'title' twice"),
    ],
)
def test_fields_that_are_refused(fields, field, said):
    with pytest.raises(InvalidInstance, match=said) as refused:
        vectorizer(SMALL).vectorize(None, fields)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("number", "keys"),
    [
        ("16.0", ["n"]),
        ("17", ["n", "n@4", "n=17"]),
        ("1.5", ["n", "n@0", "n=1.5"]),
        ("1023", ["n", "n@9", "n=1023"]),
        ("1024", ["n", "n@10", "n=1024"]),
        ("1e308", ["n", "n@1023"]),
        ("-17", ["n=-", "n=-@4", "n=-=17"]),
    ],
)
def test_whole_numbers_up_to_16_are_counts(number, keys):
    assert list(taken_apart(vectorizer(negative="split").vectorize(b'{"n": %s}' % number.encode(), None))) == keys


@pytest.mark.parametrize("unit", [1e-3, 1, 100, 1e6, 1e300])
@pytest.mark.parametrize(
    ("features", "text", "dense"),
    [
        ({"country": "FI"}, None, None),
        ({"urgent": True}, "red socks", None),
        ({}, {"title": "socks"}, None),
        ({}, None, b"\x01\x02"),
    ],
)
def test_numbers_never_outweigh_everything_else(unit, features, text, dense):
    given = features | {f"n{i}": unit * (i + 1) for i in range(40)}
    split = vectorizer().vectorize(json.dumps(given).encode(), text, dense)
    keys, values = unpack_vector(split)
    numbers = [value for key, value in zip(keys, values, strict=True) if re.match(r"n\d", key)]
    assert math.hypot(*numbers) <= math.sqrt(0.5) * (1 + 1e-6)
    assert unit < 1 or math.hypot(*numbers) == pytest.approx(math.sqrt(0.5), rel=1e-6)
    assert vectorizer().vectorize_mapping(given, dense) == vectorizer().vectorize(
        json.dumps(given).encode(), None, dense
    )


def test_boolean_models_have_ones():
    vector = vectorizer(boolean=True).vectorize(b'{"a": 1e-300, "b": 4e9, "c": 0, "d": "x"}', "a word word")
    assert taken_apart(vector) == {"a": 1.0, "word": 1.0, "b": 1.0, "d=x": 1.0}


@pytest.mark.parametrize("features", [b"{}", b" { } ", b'{"a": 0}', b'{"a": []}', b'{"a": false, "b": -1}', None])
def test_nothing_active(features):
    for text in (None, "...", {}, {"title": "", "body": "..."}):
        assert vectorizer().vectorize(features, text) == EMPTY_VECTOR


def test_mappings_follow_the_same_rules():
    v = vectorizer(negative="split")
    features = {"a": 2, "b": -0.5, "c": "x", "d": ["y", "z"], "e": True, "f": False, "ż": 1.5}
    from_json = v.vectorize(json.dumps(features).encode(), None)
    assert v.vectorize_mapping(features) == from_json
    assert v.vectorize_mapping({**features, "a": np.int64(2), "ż": np.float32(1.5)}) == from_json
    absent = {"g": None, "h": math.nan, "i": np.float32("nan"), "j": [None], "k": "", "l": " "}
    assert v.vectorize_mapping(features | absent) == from_json
    for wrong in ({1: 1}, {"a": b"x"}, {"a": math.inf}, {"a": 10**400}):  # JSON cannot hold them
        with pytest.raises(InvalidInstance):
            v.vectorize_mapping(wrong)


@pytest.mark.parametrize(
    ("features", "field"),
    [
        (b"[]", "features"),
        (b"", "features"),
        (b"{", "features"),
        (b'{"a": 01}', "features"),
        (b'{"a": {}}', "features.a"),
        (b'{"a": ["b", 1]}', "features.a[1]"),
        (b'{"a": 1e999}', "features.a"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "features.a"),
        (b'{"": 1}', "features"),
        (b'{"a\\ud800": 1}', "features.a\\ud800"),
        (b'{"a": "\\ud800"}', "features.a"),
        (b'{"a": ["b", "\\udfff"]}', "features.a[1]"),
        (b'{"a": "\xff"}', "features"),
        (b'{"a\xed\xa0\x80": 1}', "features"),
        (b'{"a": "\\u00g0"}', "features"),
        (b'{"a": "\\ud83c\\', "features"),
        (b'{"' + b"x" * 513 + b'": 1}', "features." + "x" * 61 + "..."),
        (b'{"country": "' + b"x" * 505 + b'"}', "features.country"),
        (b'{"tags": ["a", "' + b"x" * 508 + b'"]}', "features.tags[1]"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "features"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "features"),
    ],
)
def test_refused_features(features, field):
    for text in (None, "words"):
        with pytest.raises(InvalidInstance) as refusal:
            vectorizer().vectorize(features, text)
        assert refusal.value.field == field
        assert len(str(refusal.value)) < 200


def test_keys_and_sums_up_to_the_limit():
    with pytest.raises(InvalidInstance, match=r"1\.8e308"):
        vectorizer(numbers="raw").vectorize(b'{"a": 1e308, "a": 1e308}', None)
    longest = b'{"%s": "%s", "%s": 1}' % (b"k" * 100, b"v" * 411, b"n" * 512)
    assert [len(key) for key in unpack_vector(vectorizer().vectorize(longest, None))[0]] == [512, 512]
    split = vectorizer(negative="split")
    assert len(unpack_vector(split.vectorize(b'{"%s": -1}' % (b"n" * 510), None))[0][0]) == 512
    with pytest.raises(InvalidInstance, match="512 bytes"):
        split.vectorize(b'{"%s": -1}' % (b"n" * 511), None)


def test_limits_of_features_and_text():
    small = vectorizer(SMALL)
    six = {str(n): 1 for n in range(6)}
    assert len(taken_apart(small.vectorize(json.dumps({**six, "x": 0, "y": False}).encode(), None))) == 6
    for features, text, field in [
        ({**six, "x": 1}, None, "features"),
        ({"x": [str(n) for n in range(7)]}, None, "features"),
        ({}, "x" * 61, "text"),
        ({}, "ż" * 31, "text"),
        ({}, "\ud800", "text"),
    ]:
        with pytest.raises(InvalidInstance) as refusal:
            small.vectorize(json.dumps(features).encode(), text)
        assert refusal.value.field == field
    assert list(taken_apart(small.vectorize(None, "b " + "x" * 13 + " a"))) == ["b", "a"], "long terms are left out"


@pytest.mark.parametrize(
    ("features", "text", "kept"),
    [
        (None, "b a c d e f g", "bacdef"),
        (None, "a b c d e f g g", "abcdeg"),
        (b'{"x": 1, "y": "z"}', "a b c d e e", "abce"),
        (b'{"a": 1, "y": "z"}', "a b c d e", "abcde"),
        (None, {"t": "a b", "u": "a c c"}, "ac"),
        (None, {"t": "a b c d", "u": "b"}, "ab"),
    ],
)
def test_the_most_frequent_terms_of_a_long_text_are_kept_with_a_warning(features, text, kept):
    small = vectorizer(SMALL)
    found = taken_apart(small.vectorize(features, text))
    assert "".join(key for key in found if len(key) == 1 and key != "x") == kept
    assert len(found) <= 6
    cut = len(kept) < len(set("".join(text.values() if isinstance(text, dict) else text)) - {" "})
    assert (small.warning or "").endswith(f"only the {len(kept)} most frequent are used" if cut else "")
    assert cut == (small.warning is not None)


def test_terms_of_a_very_long_text_are_counted_in_bounded_memory():
    v = vectorizer(Limits(max_features=10), analyzer=AnalyzerConfig(ngrams=(1, 8)))
    words = [f"w{n % 50_000}" for n in range(60_000)]
    assert list(taken_apart(v.vectorize(None, " ".join(words)))) == words[:10]


# The kernel against plain Python.

names = st.one_of(
    st.sampled_from(["a", "b", "key", "a=", "a=b", "ż", "longer name", '"', "\\", "a\nb", "", " a", "z\u0307"]),
    st.text(st.characters(codec="utf-8"), max_size=14),
)
numbers = st.one_of(
    st.sampled_from(["0", "-0", "-0.0", "0.0e5", "1", "1.50", "-2", "1e3", "1E+2", "12e-1", "1e22", "1e23", "1e-30"]),
    st.sampled_from(["01", "1.", ".5", "-", "+1", "1e", "1e+", "0x1", "1e99999", "1e400", "1e-400", "Infinity", "NaN"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?",
        fullmatch=True,
        alphabet=st.characters(max_codepoint=127),
    ),
)
ascii_or_not = st.booleans()
strings = st.builds(lambda text, plain: json.dumps(text, ensure_ascii=plain), names, ascii_or_not)
values = st.one_of(
    numbers,
    strings,
    st.lists(strings, max_size=4).map(lambda items: "[" + ", ".join(items) + "]"),
    st.sampled_from(["true", "false", "null", "[]", "{}", '["a", 1]', "[true]", "tru", '"unclosed', "[", '["a",]']),
)
usual_values = st.one_of(
    st.floats(1e-9, 1e9).map(repr),
    st.integers(-5, 1000).map(str),
    st.text("abcż ", max_size=9).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.lists(st.sampled_from(["a", "b", "ż"]).map(lambda text: json.dumps(text, ensure_ascii=False)), max_size=3).map(
        lambda items: "[" + ",".join(items) + "]"
    ),
    st.sampled_from(["true", "false"]),
)
spaces = st.sampled_from(["", " ", "\n\t", "\r "])


@st.composite
def objects(draw, names=strings, values=values, most=9):
    pairs = draw(st.lists(st.tuples(names, values), max_size=most))
    space = draw(spaces)
    return (
        "{" + space + f"{space},{space}".join(f"{name}{space}:{space}{value}" for name, value in pairs) + space + "}"
    ).encode()


VECTORIZERS = {
    (limits, s, b, n, u): vectorizer(
        limits,
        negative="split" if s else "ignore",
        boolean=bool(b),
        numbers=("raw", "scaled", "exact")[n],
        normalize=bool(u),
    )
    for limits in (Limits(), SMALL)
    for s, b, n, u in product((0, 1), (0, 1), (0, 1, 2), (0, 1))
}
configurations = st.sampled_from(list(VECTORIZERS))


texts = st.lists(
    st.sampled_from(["wheat", "a", "b", "ż", "key", "a_word_of_more_than_12_bytes", "żółćżółć", "\n", " "]), max_size=10
).map(" ".join)


def check_both(features: bytes, configuration, text: str | None = None) -> None:
    terms = None if text is None else Analyzer(AnalyzerConfig())(text)
    expected = outcome(plain, features, *configuration, terms)
    assert outcome(VECTORIZERS[configuration].vectorize, features, text) == expected


@settings(max_examples=examples(1200))
@given(objects(), configurations, st.none() | texts)
def test_kernel_and_plain_python_agree(features, configuration, text):
    assume(len((text or "").encode()) <= configuration[0].max_text_bytes)
    check_both(features, configuration, text)


usual_names = st.builds(
    lambda text, plain: json.dumps(text, ensure_ascii=plain),
    st.text('abcdefghż_ "\\/\n\t🌾', min_size=1, max_size=9),
    ascii_or_not,
)


@settings(max_examples=examples(300))
@given(objects(usual_names, usual_values, 40), st.booleans(), st.booleans(), st.integers(0, 2))
def test_usual_instances_take_the_kernel(features, split, boolean, scaled):
    configuration = (Limits(), int(split), int(boolean), scaled, 0)
    assert VECTORIZERS[configuration].vectorize_usual(features) is not None
    check_both(features, configuration)


@pytest.mark.parametrize(
    ("analyzer", "text"),
    [
        (AnalyzerConfig(), "and " * 5000 + "wheat " * 4095 + "grain " * 4096),
        (AnalyzerConfig(), " ".join(f"word{n % 7000}" for n in range(15_000))),
        (AnalyzerConfig(ngrams=(1, 3)), "to be or not to be\nthat is the question " * 7),
        (AnalyzerConfig(kind="char", ngrams=(1, 3)), "to be\nor not to\x1fbe"),
        (AnalyzerConfig(kind="char_wb", ngrams=(2, 4), strip_accents=True), "żółw\tżółw\nﷺ"),
    ],
)
def test_kernel_and_plain_python_agree_on_terms(analyzer, text):
    v = vectorizer(analyzer=analyzer)
    expected = plain(b'{"a": 2}', Limits(), False, False, 2, terms=Analyzer(analyzer)(text))
    assert v.vectorize(b'{"a": 2}', text) == expected
    assert len(taken_apart(expected)) > 2


@settings(max_examples=examples(1000))
@given(objects(usual_names, usual_values, 5), st.data(), configurations)
def test_damaged_json(features, data, configuration):
    damaged = bytearray(features)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        others = st.sampled_from([b"", *(bytes([byte]) for byte in b'"\\{}[],:0-e.\xff\n\0')])
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(others)
    check_both(bytes(damaged), configuration)


@given(objects(), st.integers(0, 60))
def test_the_kernel_reads_nothing_outside_of_the_object(features, cut):
    """The same bytes with different ones behind them."""
    v = _Scratch((Limits().max_features, Limits().max_key_bytes, 0, 0, 2, 1))
    answers = set()
    for poison in (b"\0" * 32, b'"' * 32, b"}" * 32, b"1" * 32):
        view = np.frombuffer(features[:cut] + poison, np.uint8)[: min(cut, len(features))]
        packed = reading.read_instance(view[:0], view, v.rules, v.values, v.norms, v.spans, v.table, v.memory)
        start = v.keys_at - 4 - 6 * (packed >> 32)
        answers.add((packed, v.memory[start : start + (packed & 0xFFFFFFFF)].tobytes() if packed >= 0 else b""))
    assert len(answers) == 1


def test_random_large_instances():
    """Thousands of features, repeated keys among them, in more memory than there is at first."""
    rng = random.Random(5)
    v = vectorizer()
    for n in (300, 3000, 12_000):
        features = (
            "{" + ",".join(f'"{rng.randrange(n):x}-{"y" * rng.randrange(30)}":{rng.random()}' for _ in range(n)) + "}"
        )
        expected = outcome(plain, features.encode(), Limits(), False, False, 2)
        assert outcome(v.vectorize, features.encode(), None) == expected
        assert n > 10_000 or v.vectorize_usual(features.encode()) is not None


def test_one_vectorizer_for_many_instances():
    """More calls than there are generations of the scratch table in a smaller one."""
    v = vectorizer()
    v.vectorize(b'{"a": 3}', None)
    [scratch] = v._pool
    scratch.rules[reading.GENERATION] = 2**24 - 3
    for n in range(6):
        assert taken_apart(v.vectorize(b'{"a": 3, "b": 2, "b": 2}', None)) == pytest.approx({"a": 0.6, "b": 0.8}), n


@njit
def number_of(source):
    return read_number(pointer(source), 0)


digits = st.from_regex(
    r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?",
    fullmatch=True,
    alphabet=st.characters(max_codepoint=127),
)


@settings(max_examples=examples(1500))
@given(st.one_of(digits, st.floats(allow_nan=False, allow_infinity=False).map(repr), st.floats(-1e9, 1e9).map(repr)))
@example("9007199254740993")
@example("8.442911973260991817129021e15")
@example("0.000000000000000000000000000000000123456789012345678")
@example("179769313486231580793e1")
@example("1e23")
def test_numbers_are_rounded_as_python_does(text):
    value, end = number_of(text.encode() + b"}")
    assert end in (-1, len(text))
    if end >= 0:
        assert value == float(text)


def colliding(n: int, mask: int) -> list[bytes]:
    """Keys that begin at the same place of the scratch table."""
    found: dict[int, list[bytes]] = {}
    for number in range(n * mask * 4):
        key = b"k%09d" % number
        place = place_of(key + bytes(8), mask)
        found.setdefault(place, []).append(key)
        if len(found[place]) == n:
            return found[place]
    raise AssertionError("not enough keys tried")


@njit
def place_of(key, mask):
    return np.int64(reading.hash_of(pointer(key), 0, len(key) - 8)) & mask


def test_keys_made_to_meet_go_another_way():
    keys = colliding(40, 511)
    features = b"{" + b",".join(b'"%s":%9d' % (key, i + 1) for i, key in enumerate(keys)) + b"}"
    assert 512 < len(features) <= 1024, "so that 512 places are used"
    v = vectorizer()
    assert v.vectorize_usual(features) is None
    assert v.vectorize(features, None) == plain(features, Limits(), False, False, 2)


@pytest.mark.parametrize(
    "features",
    [
        b'{"a": ' + b"1" * 1_000_000 + b"}",
        b'{"a": 1e' + b"0" * 1_000_000 + b"}",
        b'{"a": "' + b"\\n" * 500_000 + b'"}',
        b'{"a":0' + b',"a":1' * 200_000 + b"}",
        b'{"a":[""' + b',""' * 300_000 + b"]}",
        b'{"' + b"x" * 500 + b'":["0"' + b"".join(b',"%d"' % n for n in range(9_000)) + b"]}",
        b'{"a"' + b" " * 1_000_000 + b":1}",
        b"{" + b'"' * 1_000_000 + b"}",
        b'{"a": ' + b"[" * 1_000_000 + b"}",
    ],
)
def test_a_megabyte_takes_no_time(features):
    v = vectorizer()
    v.vectorize(b'{"a": 1}', None)
    began = time.thread_time()
    outcome(v.vectorize, features, None)
    assert time.thread_time() - began < 1.0
