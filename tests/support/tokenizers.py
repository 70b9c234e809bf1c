"""Tokenizers for tests: the bytes of a character are spread over tokens in the two usual ways."""

from __future__ import annotations

from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = ["the cat sat on the mat", "def f(x): return x", "Grüße, señor", "你好 世界", "a b  c"]


@cache
def byte_level(cut: str | None = None, corpus: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer like those of GPT-2, Llama 3 and Qwen: every token is a run of bytes; an
    expression may split texts."""
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(cut), "isolated")] if cut else []
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cut)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus or CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer like those of Llama 2, Mistral and Gemma: characters, and single bytes for
    unknown ones."""
    known = sorted({c for text in CORPUS[:2] for c in text if c != " "} | {"▁"})
    pieces = ["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *known]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
