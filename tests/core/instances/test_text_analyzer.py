"""Text to terms."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from abound_core.config import BEFORE, AnalyzerConfig, ModelConfig
from abound_core.instances import text_analyzer
from abound_core.instances.html_text import text_of
from abound_core.instances.record import pack_labels
from abound_core.instances.text_analyzer import Analyzer
from abound_core.limits import Limits
from abound_core.model.entry_application import Unit
from abound_core.model.live_model import LiveModel

SENTENCE = "The Wheat_2 prices, e.g. in Żółw's U.S.A., and the WHEAT prices!"


@pytest.mark.parametrize(
    ("config", "terms"),
    [
        ({}, "the wheat_2 prices e g in żółw s u s a and the wheat prices"),
        ({"lowercase": False}, "The Wheat_2 prices e g in Żółw s U S A and the WHEAT prices"),
        ({"strip_accents": True}, "the wheat_2 prices e g in zołw s u s a and the wheat prices"),
        ({"min_length": 3}, "the wheat_2 prices żółw and the wheat prices"),
        ({"stop_words": "english"}, "wheat_2 prices e g żółw s u s wheat prices"),
    ],
)
def test_words(config, terms):
    assert " ".join(Analyzer(AnalyzerConfig(**config))(SENTENCE)) == terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("C++, C# and .NET: #tag by @user", "c++ c# and .net #tag by @user"),
        ("c++17 i++; g++ end.Next ...dots .5 1.5", "c++ 17 i++ g++ end next dots 5 1 5"),
        ("me@example.com page#part a#b #12 ##x C#.", "me example com page part a b #12 #x c#"),
        ("你好@user 用C#写", "你好 @user 用 c# 写"),
        ("東京タワーに行く", "東京 京タ タワ ワー ーに に行 行く"),
        ("Python中文ABC测试x", "python 中文 abc 测试 x"),
        ("ＡＢＣ１２ ｶﾞｲﾄﾞ", "abc12 ガイ イド"),
        ("हिन्दी की भाषा", "हिन्दी की भाषा"),
        ("العَرَبِيَّة لغة", "العَرَبِيَّة لغة"),
        ("می\u200cروم", "می\u200cروم"),
        ("Straße Äpfel päivää", "straße äpfel päivää"),
        ("cafe\u0301 café", "café café"),
        ("ok👍🏽 👩\u200d👧 🇫🇮🇸🇪 ❤\ufe0f ❤", "ok 👍🏽 👩\u200d👧 🇫🇮 🇸🇪 ❤ ❤"),
        ("한국어를 배운다", "한국어를 배운다"),
        ("กินข้าว", "กิน นข้ ข้า าว"),
        ("ກິນເຂົ້າ a", "ກິນ ນເ ເຂົ້ ຂົ້າ a"),
        ("ភាសា", "ភាសា"),
        ("မြန်မာ", "မြန် န်မ မာ"),
        ("#東京 a@東京 #ไทย", "#東京 東京 a 東京 #ไทย ไท ทย"),
        ("", ""),
    ],
)
def test_words_of_every_script(text, terms):
    assert Analyzer(AnalyzerConfig())(text) == [unicodedata.normalize("NFC", one) for one in terms.split()]


def test_unicode_words_with_other_settings():
    def terms(text, **config):
        return Analyzer(AnalyzerConfig(**config))(text)

    assert terms("to C# 東京都 👍", min_length=3) == ["東京", "京都", "👍"]
    assert terms("C# 東京都", ngrams=(1, 2)) == ["c#", "東京", "京都", "c# 東京", "東京 京都"]


@given(text=st.text(st.characters(max_codepoint=127)) | st.text("aB1_.+#@ '-\n"), min_length=st.integers(1, 3))
def test_ascii_text_has_the_terms_of_the_general_way(text, min_length):
    """A text that ends in a letter outside of ASCII takes the general way."""
    analyze = Analyzer(AnalyzerConfig(lowercase=False, min_length=min_length))
    assert [*analyze(text), "żółw"] == analyze(f"{text} żółw")


@pytest.mark.parametrize("ngrams", [(1, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("kind", ["word", "char", "char_wb"])
@pytest.mark.parametrize("strip_accents", [True, False])
@given(
    text=st.text() | st.text(st.sampled_from("aB1_ \u0130\u00df\u00e9\u0301\u200d\u0660.'\n-")),
    lowercase=st.booleans(),
    least=st.sampled_from([1, 3]),
    stop_words=st.sampled_from(["english", None]),
)
def test_terms_are_those_of_scikit_learn(kind, ngrams, strip_accents, text, lowercase, least, stop_words):
    of_both = {"lowercase": lowercase, "stop_words": stop_words if kind == "word" else None}
    pattern, accents = rf"\w{{{least},}}" if kind == "word" else None, "unicode" if strip_accents else None
    theirs = CountVectorizer(analyzer=kind, ngram_range=ngrams, token_pattern=pattern, strip_accents=accents, **of_both)
    ours = {"kind": kind, "ngrams": ngrams, "min_length": least, "strip_accents": strip_accents, **of_both}
    assert Analyzer(AnalyzerConfig(boundaries="simple", **ours))(text) == theirs.build_analyzer()(text)


MARKED = "aé1 \u0301\u0323\u0344\u1112\u1161\u11ab\u314f\uff9e\ufdfa\u09c7\u09be\u0e33タจ์👍\u200d\ufe0f#.+\n"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"boundaries": "simple"},
        {"strip_accents": True, "min_length": 2},
        {"kind": "char", "ngrams": (1, 3)},
        {"kind": "char_wb", "ngrams": (2, 3)},
    ],
    ids=["words", "simple", "accents", "characters", "within-words"],
)
@given(text=st.text() | st.text(MARKED) | st.text("aB1_.+#@ '-\n"))
def test_a_text_in_pieces_has_the_terms_of_the_whole(config, text):
    analyze = Analyzer(AnalyzerConfig(**config))
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(text_analyzer, "PIECE", 2**40)
        changed.setattr(text_analyzer, "LONG", 2**40)
        whole = analyze(text)
        changed.setattr(text_analyzer, "PIECE", 2)
        changed.setattr(text_analyzer, "LONG", 2)
        assert analyze(text) == whole


@pytest.mark.parametrize("form", ["NFKC", "NFKD"])
def test_normalisation_in_pieces_is_that_of_the_whole_for_every_character(form, monkeypatch):
    letters = [chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) not in ("Cn", "Co", "Cs")]
    text = "".join(pair for one in letters for pair in ("a", one, "\u0301", one))
    monkeypatch.setattr(text_analyzer, "PIECE", 1)
    assert text_analyzer._normalized(text, form) == unicodedata.normalize(form, text)


def test_half_a_million_marks_in_a_row_are_normalised_in_seconds():
    marks = "a" + "\u0301\u0323" * 250_000
    began = time.process_time()
    terms = Analyzer(AnalyzerConfig())(marks)
    assert time.process_time() - began < 30  # minutes if the marks are sorted by insertion
    assert "".join(terms) == "\u1ea1" + "\u0323" * 249_999 + "\u0301" * 250_000


@given(st.text() | st.text("aé東タย\u0e31\u0301👍🏽🇫\u200d\ufe0f #+.\n"))
def test_terms_are_parts_of_the_text_and_fit_the_kernel(text):
    plain = unicodedata.normalize("NFKC", text).replace("\ufe0f", "")
    for term in Analyzer(AnalyzerConfig(lowercase=False))(text):
        assert term in plain
        assert "\n" not in term


STREAM = [
    (b'{"price": 3, "debt": -2, "tags": ["a"]}', "wheat and C++ or #tag", "x"),
    (None, "日本語の文 👍 ภาษาไทย", "y"),
    (b'{"price": -1.5}', "Café wheat", "x"),
    (b'{"price": 1000}', None, "y"),
    (b'{"a": 0.5, "b": 2}', "wheat wheat", "z"),
]


@pytest.mark.parametrize(
    ("update", "digest"), [("fsu", "fa5cf8cfc3444fb9e3f51f528b48d4ab"), ("sls", "facdb751d7b676211be0189988e6b832")]
)
def test_models_with_simple_boundaries_learn_the_same_bits_in_every_release(update, digest):
    before = BEFORE | {"update": update, "rows": False, "analyzer": AnalyzerConfig(boundaries="simple")}
    config = ModelConfig(**before)
    model = LiveModel(config, (1, 2))
    for features, text, label in STREAM:
        record = model.vectorizer.vectorize(features, text) + pack_labels([label], Limits())
        model.begin(record, 1, [Unit(1)]).finish()
    assert model.digest() == digest


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>red<b>dish</b></p><p>shoe", "reddish shoe"),
        ("<style>p {margin: 0}</style><script>var a;</script><title>Offer</title>a &amp; b", "Offer a & b"),
        ('<td>1<td>2<img src="x.png" alt="a shoe">', "1 2 a shoe"),
        ("<!-- no -->1 < 2 and\xa0é 日本", "1 < 2 and é 日本"),
        ("<div>" * 3000 + "deep", "deep"),
        ("<b>", ""),
    ],
)
def test_html_leaves_its_text(html, text):
    assert " ".join(text_of(html).split()) == text
    v = LiveModel(ModelConfig(analyzer=AnalyzerConfig(html=True)), (1, 2)).vectorizer
    assert v.vectorize(None, html) == v.vectorize(None, text)


@pytest.mark.parametrize(
    "unit", ["<div>", "<a ", "<a b='", "<!--", "<", "<p>", "&lt", "<table>", "<![if ", "<style>a</b"]
)
def test_hostile_html_takes_linear_time(unit):
    began = time.thread_time()
    text_of(unit * (2**19 // len(unit)))
    assert time.thread_time() - began < 3  # minutes, if it were quadratic


def test_stems_match_the_forms_of_a_word_in_texts_and_names():
    analyzer = Analyzer(AnalyzerConfig(stem="en"))
    assert analyzer("Batteries battery #tag C++ 日本") == ["batteri", "batteri", "#tag", "c++", "日本"]
    assert Analyzer(AnalyzerConfig(stem="de", ngrams=(2, 2)))("rote Häuser") == ["rot haus"]
    assert Analyzer(AnalyzerConfig(stem="en", stop_words="english"))("the jackets") == ["jacket"]


def test_the_prefixes_of_longer_words_are_terms_too():
    text = "Classroom Klassenzimmer #blueberry C++ 日本 👨\u200d👩\u200d👧\u200d👦"
    plain = Analyzer(AnalyzerConfig())(text)
    assert Analyzer(AnalyzerConfig(prefix=5))(text) == [*plain, "class", "klass", "#blue"]
    assert Analyzer(AnalyzerConfig(prefix=64))(text) == plain
    assert Analyzer(AnalyzerConfig(stem="en", prefix=3))("ties tied carried") == ["tie", "tie", "carri", "car"]
    pairs = AnalyzerConfig(prefix=3, ngrams=(1, 2), stop_words="english")
    assert Analyzer(pairs)("The yellow jackets") == ["yel", "jac", "yellow", "jackets", "yellow jackets"]
