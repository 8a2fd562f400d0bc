"""Encoders: a text has the vector that is the sum of those of its tokens, from files that are checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import BertPreTokenizer, Whitespace

from abound.processes.encoder_files import use_encoders
from abound_core.config import ModelConfig
from abound_core.errors import InvalidInstance
from abound_core.instances import text_encoder
from abound_core.instances.dense_vector import quantize
from abound_core.instances.record import has_dense
from abound_core.instances.vectorizer import Vectorizer
from abound_core.limits import Limits
from abound_core.model.live_model import LiveModel

WORDS = ["wheat", "grain", "price", "zero"]
TABLE = np.array([[1, 0, 0.5], [0.5, -1, 0], [-0.25, 0.25, 1], [0, 0, 0]], np.float32)


def make(home: Path, **tensors: np.ndarray) -> None:
    """Write an encoder of ``WORDS``."""
    home.mkdir()
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="zero"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(home / "tokenizer.json"))
    save_file(tensors or {"embeddings": TABLE}, home / "model.safetensors")


@pytest.fixture(autouse=True)
def encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(text_encoder, "source", None)
    use_encoders(tmp_path)
    return tmp_path


def vectorizer_of(**analyzer: Any) -> Vectorizer:
    return Vectorizer(ModelConfig.from_dict({"update": "sls", "analyzer": analyzer}), Limits())


def refusal(name: str) -> str:
    with pytest.raises(InvalidInstance) as refused:
        text_encoder.load(name)
    assert refused.value.field == "analyzer.embed"
    return str(refused.value)


def test_a_text_is_the_sum_of_its_tokens(encoders: Path) -> None:
    make(encoders / "small")
    encoder = text_encoder.load("small")
    assert encoder.dimension == 3
    table = np.rint(TABLE * 127).astype(int)
    assert encoder.encode("wheat grain wheat") == quantize(2 * table[0] + table[1])
    assert encoder.encode("unknown zero") is encoder.encode("") is None


def sentence_piece(*more: str) -> Tokenizer:
    """One that merges ``a▁`` too, if it is among ``more``."""
    letters = ["<unk>", "\u2581", *"abé<s>"]
    merges = [("a", "b"), ("\u2581", "ab"), ("\u2581", "\u2581"), *((one[0], one[1]) for one in more)]
    vocabulary = {token: number for number, token in enumerate([*letters, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]  # type: ignore[list-item]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


def bert() -> Tokenizer:
    words = ["[UNK]", "a", "b", "ab", "##a", "##b", "e", "."]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


@pytest.mark.parametrize("tokenizer", [sentence_piece(), bert()], ids=["SentencePiece", "BERT"])
@given(text=st.text(st.sampled_from("aabbéÉ.<s>[UNK]   \u2581\u0301\n\u6f22")) | st.text())
def test_the_tokens_of_words_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    encoder = text_encoder.TextEncoder(np.ones((tokenizer.get_vocab_size(), 1)), tokenizer)
    assert text_encoder.has_tokens_of_words(tokenizer)
    assert list(encoder.tokens(text)) == tokenizer.encode(text, add_special_tokens=False).ids


def test_a_tokenizer_with_tokens_of_several_words_is_given_the_whole_text() -> None:
    tokenizer = sentence_piece("a\u2581")
    encoder = text_encoder.TextEncoder(np.ones((tokenizer.get_vocab_size(), 1)), tokenizer)
    whole = tokenizer.encode("a a", add_special_tokens=False)
    assert "a\u2581" in whole.tokens
    assert list(encoder.tokens("a a")) == whole.ids


def test_tokens_may_share_rows_and_have_weights(encoders: Path) -> None:
    weights = np.array([1, 0.5, 0.25, 1])
    make(encoders / "small", embeddings=TABLE[[2, 0]], mapping=np.array([1, 1, 0, 0]), weights=weights)
    encoder = text_encoder.load("small")
    table = TABLE[[0, 0, 2, 2]] * weights[:, None]
    whole = np.rint(table * (127 / np.abs(table).max())).astype(int)
    assert encoder.encode("grain price price") == quantize(whole[1] + 2 * whole[2])


def test_a_text_is_encoded_up_to_8000_characters(encoders: Path) -> None:
    """Characters count, not bytes; all words of the text stay words."""
    make(encoders / "small")
    vectorizer, plain = vectorizer_of(embed="small"), vectorizer_of()
    encoder = text_encoder.load("small")
    for unknown in ("a ", "ä ", "\U0001f33e "):
        start = unknown * 3997 + " wheat"
        assert len(start) == 8000
        assert encoder.encode(start[1:]) == encoder.encode(start) == encoder.encode("wheat")
        assert encoder.encode(start[:-1]) is None
        for rest in ("s", " grain" * 2000):
            assert encoder.encode(start + rest) == encoder.encode(start)
            vector = vectorizer.vectorize(None, start + rest)
            assert vector == plain.vectorize(None, start + rest, encoder.encode(start))
    fields = {"body": "a " * 5000, "title": "wheat"}
    assert vectorizer.vectorize(None, fields) == plain.vectorize(None, fields, encoder.encode("wheat"))


def test_files_that_are_not_an_encoder(encoders: Path) -> None:
    assert "there is no encoder other, in " in refusal("other")
    make(encoders / "two")
    save_file({"embeddings": TABLE}, encoders / "two" / "more.safetensors")
    assert "has 2 safetensors files" in refusal("two")
    make(encoders / "short", embeddings=TABLE[:2])
    assert "has 4 tokens and vectors for 2" in refusal("short")
    make(encoders / "flat", embeddings=TABLE[0])
    assert "0 tensors with two dimensions" in refusal("flat")
    make(encoders / "nan", embeddings=TABLE * np.nan)
    assert "not finite" in refusal("nan")
    make(encoders / "damaged")
    (encoders / "damaged" / "tokenizer.json").write_text("{")
    assert "the encoder damaged cannot be read" in refusal("damaged")


@pytest.mark.parametrize("name", ["", "../small", "a/b", ".hidden", "x" * 65, "small\n", 3])
def test_a_name_is_no_path(name: object) -> None:
    with pytest.raises(InvalidInstance, match=r"analyzer\.embed must be a name"):
        ModelConfig.from_dict({"update": "sls", "analyzer": {"embed": name}})


def test_a_model_encodes_texts_that_come_without_a_vector(encoders: Path) -> None:
    make(encoders / "small")
    vectorizer, plain = vectorizer_of(embed="small"), vectorizer_of()
    own = text_encoder.load("small").encode("wheat price")
    assert vectorizer.vectorize(None, "wheat price") == plain.vectorize(None, "wheat price", own)
    other = quantize(np.array([3.0, 2.0, 1.0]))
    assert vectorizer.vectorize(None, "wheat price", other) == plain.vectorize(None, "wheat price", other)
    assert not has_dense(vectorizer.vectorize(None, "unknown"))
    assert not has_dense(vectorizer.vectorize(b'{"wheat": 1}', None))


def test_an_encoder_may_read_one_field_of_a_text_and_all_of_its_words(encoders: Path) -> None:
    make(encoders / "small")
    vectorizer = vectorizer_of(embed="small", embed_field="title", prefix=3)
    plain = vectorizer_of(prefix=3)
    encode = text_encoder.load("small").encode
    for text, read in (
        ({"title": "wheat", "body": "price"}, "wheat"),
        ({"title": "", "body": "price"}, "price"),
        ({"title": None, "body": "price"}, "price"),
        ({"name": "wheat", "body": "price"}, "wheat price"),
        ("wheat price", "wheat price"),
    ):
        assert vectorizer.vectorize(None, text) == plain.vectorize(None, text, encode(read))


def test_a_machine_without_the_encoder_learns_what_others_encoded() -> None:
    model = LiveModel(ModelConfig.from_dict({"update": "sls", "analyzer": {"embed": "missing"}}), (1, 2))
    assert model.vectorizer.vectorize(b'{"wheat": 1}', None)
    with pytest.raises(InvalidInstance, match="there is no encoder missing"):
        model.vectorizer.vectorize(None, "wheat")
