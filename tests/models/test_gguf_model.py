"""GGUF files: used directly, unpacked by transformers; and unreadable ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split
from transformers import AutoModelForCausalLM, AutoTokenizer

from ladecli.decoder.backends import int8
from ladecli.models.gguf_model import CUTS
from tests.support.new_python import calls

pytest.importorskip("gguf")

import gguf

from tests.support.gguf import byte_vocabulary, model_of, piece_vocabulary, write
from tests.support.tokenizers import byte_level

pytestmark = pytest.mark.slow

PROMPT = "the cat sat on the mat def f(x): return x " * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file, small.gguf."""
    made = tmp_path_factory.mktemp("files")
    write(made / "small.gguf", kind="Q8_0")
    return made


def test_the_text_is_that_of_transformers(folder: Path, lade: Any, capsys: Any) -> None:
    source = {"pretrained_model_name_or_path": folder, "gguf_file": "small.gguf"}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    ids = tokenizer("the cat sat on", return_tensors="pt")["input_ids"]
    mask = torch.ones_like(ids)
    told: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
    text = model.generate(ids, attention_mask=mask, max_new_tokens=30, **told)[0, ids.shape[1] :]
    capsys.readouterr()  # bars of its own
    asked = ("-p", "the cat sat on", "--raw", "-n", "30", "--ignore-eos", "--json")
    for name in (folder / "small.gguf", folder):
        done = lade("generate", str(name), *asked, "--dtype", "float32")
        answer = done.json()
        assert answer["token_ids"] == text.tolist()
        assert answer["decode"]["strategy"] == "lookahead", "its drafts are verified"
        assert re.search(r"small.gguf is unpacked to float32, which takes \d", done.err)
        assert len(done.err.splitlines()) <= 2, "no bars of the libraries"


@pytest.mark.skipif(not int8.available(), reason="this processor has no products of integers")
def test_a_quantised_file_is_held_in_8_bits(folder: Path, lade: Any) -> None:
    asked = ("-p", "the cat sat on", "--raw", "-n", "8", "--ignore-eos", "--json")
    done = lade("generate", str(folder / "small.gguf"), *asked)
    assert re.search(r"small.gguf is held in 8 bits, .* --dtype float32", done.err)
    plain = lade("generate", str(folder / "small.gguf"), *asked, "--dtype", "float32")
    assert done.json()["token_ids"] == plain.json()["token_ids"], "of 8 bits nothing is lost"


def test_all_kinds_of_blocks_are_unpacked(lade: Any, tmp_path: Path) -> None:
    """A layer for each kind, with random blocks."""
    kinds = [kind for kind in gguf.quants._type_traits if kind.name not in ("F32", "F16")]
    shape = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": len(kinds)}
    model, draw = model_of(**shape, max_position_embeddings=64), np.random.default_rng(0)
    tensors = {}
    for layer, kind in zip(model.model.layers, kinds, strict=True):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        # Small bytes, so that no scale is huge or NaN.
        blocks = draw.integers(0, 40, (64, 256 // block * size), np.uint8)
        tensors[f"blk.{layer.self_attn.layer_idx}.ffn_up.weight"] = (blocks, kind.name)
        layer.mlp.up_proj.weight.data = torch.from_numpy(gguf.dequantize(blocks, kind))
    file = write(tmp_path / "m.gguf", model, None, tensors)
    ids = plain(model, byte_level()("the cat")["input_ids"], 4)
    asked = ("-p", "the cat", "--raw", "-n", "4", "--ignore-eos", "--json")
    done = lade("generate", str(file), *asked, "--dtype", "float32")
    assert done.json()["token_ids"] == ids
    assert len(lade("generate", str(file), *asked).json()["token_ids"]) == 4, "in 8 bits, too"


def test_one_of_several_is_named(folder: Path, lade: Any, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(folder / "small.gguf", tmp_path / name)
    asked = ("generate", str(tmp_path), "-p", "the", "-n", "2", "-q")
    told = lade(*asked).refused(1)
    assert "holds 2 GGUF files: name one with --gguf-file, of a.gguf, b.gguf" in told
    assert "holds no c.gguf; it has a.gguf, b.gguf" in lade(
        *asked, "--gguf-file", "c.gguf"
    ).refused(1)
    assert lade(*asked, "--gguf-file", "b.gguf").out


def answer(lade: Any, file: Path, prompt: str = PROMPT) -> dict[str, Any]:
    """Return the program's answer to a prompt."""
    options = ("-p", prompt, "--raw", "-n", "12", "--ignore-eos", "--json")
    result: dict[str, Any] = lade("generate", str(file), *options).json()
    return result


def plain(model: Any, ids: list[int], tokens: int = 12) -> list[int]:
    """Return transformers' continuation of a prompt."""
    prompt = torch.tensor([ids])
    told: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
    told |= {"attention_mask": torch.ones_like(prompt), "max_new_tokens": tokens}
    return model.generate(prompt, **told)[0, len(ids) :].tolist()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    **{"rope_type": "longrope", "original_max_position_embeddings": 64, "attention_factor": 1.25},
    **{"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 3.0, 6.0, 9.0]},
}
LONG_FILE = {
    **{".rope.scaling.original_context_length": 64, ".rope.scaling.attn_factor": 1.25},
    "rope_factors_short.weight": LONG["short_factor"],
    "rope_factors_long.weight": LONG["long_factor"],
}
LINEAR = {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}
YARN_FILE = {
    **{".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0},
    ".rope.scaling.original_context_length": 64,
}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
LINEAR_8 = {"rope_type": "linear", "factor": 8.0}
SCALED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llama3": ("llama", LLAMA3, {"rope_freqs.weight": [1.0, 7.66704, 8.0, 8.0]}, {}),
    "llama, linear": ("llama", LINEAR_8, LINEAR, {}),
    "llama, linear as old files have it": ("llama", LINEAR_8, {".rope.scale_linear": 8.0}, {}),
    "llama, longrope": ("llama", LONG, LONG_FILE, {}),
    "phi3, longrope": (
        *("phi3", LONG | {"long_factor": [1.0, 3.0, 6.0], "short_factor": [1.0, 1.5, 2.0]}),
        LONG_FILE
        | {"rope_factors_long.weight": [1, 3, 6], "rope_factors_short.weight": [1, 1.5, 2]},
        {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 64},
    ),
    "qwen2, yarn": ("qwen2", YARN, YARN_FILE, {}),
    "qwen3, yarn": (
        "qwen3",
        YARN | {"attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0},
        YARN_FILE
        | {".rope.scaling.yarn_attn_factor": 1.5, ".rope.scaling.yarn_beta_fast": 16.0}
        | {".rope.scaling.yarn_beta_slow": 2.0},
        {"head_dim": 16},
    ),
    "gemma2, linear": ("gemma2", LINEAR_8, LINEAR, {"head_dim": 8, "tie_word_embeddings": True}),
    "gemma3, linear where it attends to all": (
        "gemma3_text",
        {"full_attention": LINEAR_8, "sliding_attention": {"rope_theta": 5000.0}},
        LINEAR | {".rope.freq_base_swa": 5000.0, ".attention.sliding_window": 16},
        {"head_dim": 8, "num_hidden_layers": 6, "sliding_window": 16, "tie_word_embeddings": True},
    ),
    "stablelm": ("stablelm", LINEAR_8 | {"partial_rotary_factor": 0.5}, LINEAR, {}),
}


def scaled(case: str, path: Path) -> tuple[Any, Path]:
    """A model of a case, and its file."""
    family, rope, stated, settings = SCALED[case]
    parts = [rope["full_attention"], rope["sliding_attention"]] if "full_attention" in rope else []
    for part in parts or [rope]:
        part.setdefault("rope_theta", 10000.0)
        part.setdefault("rope_type", "default")
    vocabulary = None
    if family.startswith("gemma"):  # this family has no byte-level tokenizer
        vocabulary = piece_vocabulary(False)
        settings = settings | {"vocab_size": len(vocabulary["tokenizer.ggml.tokens"])}
    model = model_of(family, rope_parameters=rope, **settings)
    tensors = {name: value for name, value in stated.items() if name.endswith("weight")}
    more = {name: value for name, value in stated.items() if name not in tensors}
    return model, write(path, model, more, tensors, vocabulary=vocabulary)


@pytest.mark.parametrize("case", SCALED)
def test_rotary_embeddings_are_those_of_the_original_model(
    case: str, lade: Any, tmp_path: Path
) -> None:
    model, file = scaled(case, tmp_path / "m.gguf")
    for prompt in ("the cat sat", PROMPT * 2):  # longrope changes between them
        ids = byte_level()(prompt)["input_ids"]
        if case.startswith("gemma"):
            prompt = "the cat on the mat" * (1 + len(prompt) // 40)
            tokens = piece_vocabulary(False)["tokenizer.ggml.tokens"]
            ids = [tokens.index(character) for character in prompt.replace(" ", "▁")]
        assert answer(lade, file, prompt)["token_ids"] == plain(model, ids)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "block_count": ({".block_count": 1_000_000}, "llama.block_count is 1000000"),
    "more layers than there are": ({".block_count": 40}, "llama.block_count is 40"),
    "feed_forward_length": ({".feed_forward_length": 2**31}, "llama.feed_forward_length is 21474"),
    "vocab_size": ({".vocab_size": 2**31}, "llama.vocab_size is 2147483648"),
    "head_count": ({".attention.head_count": 0}, "cannot read this GGUF file"),
    "scaling": ({".rope.scaling.type": "new"}, "has new scaling of rotary frequencies"),
    "longrope": ({".rope.scaling.type": "longrope"}, "has longrope scaling"),
    "another scaling": ({".rope.scaling.alpha": 1000.0}, "states llama.rope.scaling.alpha"),
    "a part of each head": ({".rope.dimension_count": 6}, "turns 6 of 8 dimensions"),
    "experts": ({".expert_count": 8}, "holds experts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_settings_are_named(case: str, lade: Any, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    file = write(tmp_path / "m.gguf", None, settings)
    assert message in lade("generate", str(file), "-p", "the").refused(1)


def test_factors_of_frequencies_fit_the_heads(lade: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", None, None, {"rope_freqs.weight": [1.0, 2.0]})
    assert "2 factors" in lade("generate", str(file), "-p", "the").refused(1)


def test_biases_that_only_the_file_has_are_kept(lade: Any, tmp_path: Path) -> None:
    model = model_of(attention_bias=True, mlp_bias=True)
    file = write(tmp_path / "m.gguf", model)
    assert answer(lade, file)["token_ids"] == plain(model, byte_level()(PROMPT)["input_ids"])


def test_unused_weights_are_reported(lade: Any, tmp_path: Path) -> None:
    more = {"rope_freqs.weight": [1.0] * 4, "blk.0.attn_q_norm.weight": [1.0] * 8}
    file = write(tmp_path / "m.gguf", None, None, more)
    done = lade("generate", str(file), "-p", "the", "--raw", "-n", "2")
    assert "does not take blk.0.attn_q_norm.weight, so" in done.err


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        (
            "chatglm-bpe",
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
        ),
        ("hunyuan", r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"),
        ("smollm", r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        ("gpt-2", r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    ],
)
def test_texts_are_split_by_pre_tokenizers(pre: str, cut: str, lade: Any, tmp_path: Path) -> None:
    text = "(the) cat!\n\nsat 12345 (on): 2024\n"
    tokenizer = byte_level(cut, (text, "(the) (on): !\n\n 12345 12 345 2024 202 4") * 8)
    model = model_of(vocab_size=len(tokenizer))
    file = write(tmp_path / "m.gguf", model, vocabulary=byte_vocabulary(tokenizer, pre))
    ids = tokenizer(text)["input_ids"]
    done = answer(lade, file, text)
    assert done["usage"]["prompt_tokens"] == len(ids)
    assert done["token_ids"] == plain(model, ids)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_tokenizers_add_bos_if_stated(pre: str, lade: Any, tmp_path: Path) -> None:
    names, counts = ("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token"), []
    for values in ((None, False), (True, False), (None, None)):
        vocabulary = byte_vocabulary(pre=pre) | dict(zip(names, values, strict=True))
        file = write(tmp_path / "m.gguf", vocabulary=vocabulary)
        counts.append(answer(lade, file, "q")["usage"]["prompt_tokens"])
    # Like llama.cpp, texts for Llama 3 begin with BOS if the file does not say.
    assert counts == [1, 2, 1 + (pre == "llama-bpe")]


def test_qwen_normalises_combining_characters(lade: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre="qwen2"))
    asked = [answer(lade, file, text)["usage"]["prompt_tokens"] for text in ("é", "e\u0301")]
    assert asked[0] == asked[1]


def test_all_pre_tokenizers_keep_the_text_complete() -> None:
    text = "It's 12345 Words, wörds&&\r\n  你好かな  x\t\n1 '"
    for name, cut in CUTS.items():
        pieces = [(text, (0, len(text)))]
        for expression in cut:
            split = Split(Regex(expression), "isolated")
            pieces = [part for piece, _ in pieces for part in split.pre_tokenize_str(piece)]
        assert "".join(piece for piece, _ in pieces) == text, name
        assert len(pieces) > 8, name


@pytest.mark.parametrize("pre", ["brand-new", None])
def test_an_unknown_pre_tokenizer_is_reported(pre: str | None, lade: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre=pre))
    done = lade("generate", str(file), "-p", "the", "--raw", "-n", "2")
    (line,) = (line for line in done.err.splitlines() if "pre-tokenizer" in line)
    assert "GPT-2" in line
    assert str(pre) in line


@pytest.mark.parametrize("prefix", [True, False, None])
def test_the_space_before_a_text(prefix: bool | None, lade: Any, tmp_path: Path) -> None:
    vocabulary = piece_vocabulary(prefix, "▁t", "he", "the", "▁the")
    tokens = vocabulary["tokenizer.ggml.tokens"]
    model = model_of(vocab_size=len(tokens))
    file = write(tmp_path / "m.gguf", model, vocabulary=vocabulary)
    pieces = ["the", *"▁cat"] if prefix is False else ["▁the", *"▁cat"]
    done = answer(lade, file, "the cat")
    assert done["token_ids"] == plain(model, [tokens.index(piece) for piece in pieces])


def test_a_file_without_a_chat_template_is_refused_from_its_header(tmp_path: Path) -> None:
    without = byte_vocabulary() | {"tokenizer.chat_template": None}
    file = write(tmp_path / "m.gguf", vocabulary=without)
    (done,) = calls(["chat", str(file)])
    assert "chat template" in done.refused(2)
    assert "torch" not in done.imported


def test_a_file_of_a_split_model_loads_the_whole_model(
    folder: Path, lade: Any, tmp_path: Path
) -> None:
    write(tmp_path / "m.gguf", kind="Q8_0", split=12)
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    ids = answer(lade, folder / "small.gguf")["token_ids"]
    for name in (first, second, tmp_path):  # a folder, too
        assert answer(lade, name)["token_ids"] == ids
    second.unlink()
    told = lade("generate", str(first), "-p", "the").refused(1)
    assert "one of 2 files" in told
    assert second.name in told, "is not here"


def test_types_that_are_not_unpacked_are_named(lade: Any, tmp_path: Path) -> None:
    blocks = np.zeros((2, 292), np.uint8)
    file = write(tmp_path / "m.gguf", None, None, {"more.weight": (blocks, "Q8_K")})
    line = lade("generate", str(file), "-p", "the").refused(1)
    assert ("Q8_K" in line, "damaged" in line) == (True, False)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def overlap(path: Path) -> None:
    """Return a file whose second tensor begins at the first one."""
    data, name = bytearray(path.read_bytes()), b"output_norm.weight"
    at = data.rindex(name) + len(name) + 4 + 8 + 4
    data[at : at + 8] = bytes(8)
    path.write_bytes(data)


def count(path: Path) -> None:
    """Return a file with 2**60 tensors."""
    data = bytearray(path.read_bytes())
    data[8:16] = (2**60).to_bytes(8, "little")
    path.write_bytes(data)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (cut, "is damaged or cut off ("),
    "without its last byte": (lambda p: p.write_bytes(p.read_bytes()[:-1]), "is damaged or cut"),
    "only its first bytes": (lambda p: p.write_bytes(b"GGUF\3\0\0\0"), "is damaged or cut off ("),
    "tensors that overlap": (overlap, "is damaged or cut off (output_norm.weight overlaps"),
    "too many tensors": (count, "is damaged or cut off ("),
    "something else": (lambda p: p.write_bytes(b"hello there"), "is not a GGUF file; download"),
    "images": (
        lambda p: write(p, architecture="flux"),
        "transformers cannot read this GGUF file (",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_cannot_be_read(case: str, folder: Path, lade: Any, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    path = tmp_path / "broken.gguf"
    shutil.copy(folder / "small.gguf", path)
    change(path)
    line = lade("generate", str(path), "-p", "the").refused(1)
    assert (str(path) in line, message in line) == (True, True), line
