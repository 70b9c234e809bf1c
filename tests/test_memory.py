"""What fits into memory, and what is said where it does not."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import transformers

from ladecli import models
from ladecli.blueprint import shape_of
from ladecli.decoder.config import CAPTURED_WIDTHS, GROWTH, PREFILL_CHUNK, LookaheadConfig
from ladecli.decoder.engine import Limits
from ladecli.decoder.kv_cache import KVCache, LayerShape
from ladecli.decoder.load import load_decoder
from ladecli.decoder.strategies import make_strategy
from ladecli.errors import LadeError, LoadError, UsageError
from ladecli.memory import Asked, estimate, room, smaller_forms, told
from ladecli.options import LoadOptions, Request
from ladecli.provision import provide
from ladecli.shape import ModelShape

from .held import Held

LLAMA_7B = ModelShape(
    6.74e9, 6.74e9, "bfloat16", 13.48e9, "bfloat16", 32, 4096, 11008, 32, 32, 128, 32000
)
GB = 1e9


def ask(
    free: float,
    shape: ModelShape = LLAMA_7B,
    wanted: int | None = None,
    width: int = 64,
    longest: int = 4096,
) -> tuple[int, str | None]:
    return room("m", shape, free, Asked(longest, wanted, width), where="GPU", kind="cuda")


def test_what_fits_is_not_talked_about() -> None:
    assert ask(24 * GB) == (4096, None)
    assert ask(24 * GB, wanted=1000) == (1000, None)
    assert ask(24 * GB, wanted=10_000) == (4096, None), "never beyond the model's own context"


@pytest.mark.parametrize(
    ("context", "prompt", "slots"),
    [
        (300, 10, [256, 768]),
        (1024, 500, [768, 1280]),
        (1500, 100, [256, 512, 1024, 1792]),
        (2500, 1900, [512, 1024, 2816]),
        (4000, 3500, [512, 1024, 2048, 4352]),
    ],
)
def test_the_cache_at_its_worst_moment(context: int, prompt: int, slots: list[int]) -> None:
    layer = LayerShape(1, 4, 4, torch.float32, torch.device("cpu"))
    cache, width, sizes = KVCache([layer], context + GROWTH), 24, [0]
    while cache.length < context:
        chunk = min(PREFILL_CHUNK, prompt - cache.length)
        tokens = chunk if chunk == PREFILL_CHUNK else max(chunk, 0) + width
        cache.reserve(cache.length + tokens)
        cache.keep(range(max(chunk, 1)))
        if cache.slots != sizes[-1]:
            sizes.append(cache.slots)
    assert sizes[1:] == slots
    held = max(old + new for old, new in pairwise(sizes))
    estimated = estimate(LLAMA_7B, context=context, width=width).cache / LLAMA_7B.cache_bytes
    assert 0.75 * estimated < held <= estimated <= 1.75 * slots[-1]


def test_captured_steps_take_little_more_memory() -> None:
    plain, captured = (
        estimate(LLAMA_7B, context=4096, width=64, captured=each) for each in (False, True)
    )
    assert plain.step < captured.step
    assert captured.total - plain.total < 0.01 * plain.weights


@pytest.mark.parametrize("width", [1, 24, 64, 256])
def test_captured_steps_write_logits_to_one_tensor(width: int) -> None:
    """Beside what the widest one computes."""
    more = []
    for vocabulary in (0, 1000):
        shape = replace(LLAMA_7B, vocabulary=vocabulary)
        plain, captured = (
            estimate(shape, context=4096, width=width, captured=each).step for each in (False, True)
        )
        more.append(captured - plain)
    assert more[1] - more[0] == max(width, CAPTURED_WIDTHS[-1]) * 1000 * 2


@pytest.mark.parametrize(
    ("budget", "compiled", "width"),
    [(17, False, 24), (130, False, 256), (17, True, 64), (65, True, 128)],
)
def test_captured_steps_are_counted_as_wide_as_they_run(
    budget: int, compiled: bool, width: int
) -> None:
    planned = models.plan("demo", LoadOptions(device="cpu"))
    provided = provide(
        Request(compile=compiled), planned, LookaheadConfig(5, 3, 5, budget), captured=True
    )
    need = estimate(planned.part, context=planned.facts.context, width=width, captured=True)
    assert provided.beside == need


def test_captured_steps_leave_room_for_shorter_texts() -> None:
    wide = replace(LLAMA_7B, vocabulary=1_000_000)
    plain, captured = (
        room("m", wide, 20 * GB, Asked(131_072, width=64, captured=each))[0]
        for each in (False, True)
    )
    assert captured < plain


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (8, 1)])
@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_what_a_decoder_really_holds(heads: int, kv_heads: int, attention: str) -> None:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=200,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    decoder = load_decoder(model, max_context=2000, attention=attention)
    strategy = make_strategy("lookahead", LookaheadConfig(5, 3, 5, 24))
    prompt = torch.arange(1990).remainder(150).tolist()
    with Held() as held:
        for _ in decoder.generate(prompt, strategy, None, Limits(8)):
            pass
    shape = shape_of(config, torch.float32)
    need = estimate(shape, context=2000, width=24, attention=attention)
    assert 0.6 * (need.cache + need.step) < held.most <= need.cache + need.step


def test_a_long_context_is_cut_to_what_fits_and_told() -> None:
    context, notice = ask(20 * GB, longest=131_072)
    assert notice is not None
    assert 4096 < context < 10_000
    assert estimate(LLAMA_7B, context=context, width=64).total < 20 * GB
    assert estimate(LLAMA_7B, context=int(context * 1.1), width=64).total > 0.97 * 20 * GB
    assert re.fullmatch(
        r"131,072 tokens of context need \d+ GB beside the weights of 13\.5 GB, and 19\.4 GB can be"
        rf" used on GPU: texts end at {context:,} tokens; --quantize 4bit leaves room for \d+,\d+",
        notice,
    )


def test_a_context_that_was_asked_for_is_refused_with_one_that_fits() -> None:
    with pytest.raises(UsageError, match=r"--max-context \d+ fits") as caught:
        ask(16 * GB, wanted=4096)
    fitting = int(re.search(r"--max-context (\d+)", str(caught.value))[1])
    assert ask(16 * GB, wanted=fitting) == (fitting, None)


def test_weights_that_do_not_fit_name_the_first_form_that_does() -> None:
    single = replace(LLAMA_7B, weights="float32", compute="float32", weight_bytes=26.96e9)
    for free, shape, fix in (
        (16, single, "; --dtype bfloat16 needs 14.6 GB"),
        (9, single, "; --quantize 4bit needs 6.96 GB"),
        (9, LLAMA_7B, "; --quantize 8bit needs"),
        (6, LLAMA_7B, "; --quantize 4bit needs"),
        (2, LLAMA_7B, "; take a smaller model, or free some memory"),
    ):
        line = f"m needs .*, .* more than the {told(0.97 * free * GB)} that can be used on GPU{fix}"
        with pytest.raises(LoadError, match=line):
            ask(free * GB, shape)


def test_a_refusal_does_not_contradict_itself() -> None:
    free = (estimate(LLAMA_7B, context=1024).total - 50e6) / 0.97
    with pytest.raises(LoadError, match=r"needs 14\.6 GB, 50 MB more than the 14\.6 GB that can"):
        ask(free)


def test_experts_stay_out_of_what_bitsandbytes_packs() -> None:
    mixtral = replace(LLAMA_7B, parameters=46.7e9, weight_bytes=93.4e9, linear=1.3e9)
    forms = dict(smaller_forms(mixtral, "cuda"))
    assert forms["--quantize 4bit"].weight_bytes == 1.3e9 * 0.5625 + 45.4e9 * 2
    with pytest.raises(LoadError, match="; take a smaller model, or free some memory"):
        ask(40 * GB, mixtral)


def test_bitsandbytes_is_not_offered_for_apple_gpus() -> None:
    for free, error in ((12, LoadError), (16, UsageError)):
        with pytest.raises(error) as caught:
            room("m", LLAMA_7B, free * GB, Asked(4096, 4096, 8), kind="mps")
        assert "--quantize" not in str(caught.value)


def test_latent_attention_caches_less() -> None:
    deepseek = replace(LLAMA_7B, latent=576)
    assert deepseek.cache_bytes == 32 * 576 * 2
    assert estimate(deepseek, context=4096).cache < estimate(LLAMA_7B, context=4096).cache / 14


def test_a_budget_that_does_not_fit_names_one_that_does() -> None:
    # Logits of a large vocabulary are what a wide step takes.
    wide = replace(LLAMA_7B, vocabulary=2_000_000, weight_bytes=13.48e9)
    free = estimate(wide, context=1024, width=64).total / 0.97 + 1e6
    with pytest.raises(UsageError, match=r"steps of 512 tokens of m do not fit .*; --budget 64"):
        ask(free, wide, width=512, longest=1024)
    # A window of more tokens would refuse that budget.
    line = r"; --sources context,recycled --budget 64 does$"
    with pytest.raises(UsageError, match=line):
        room("m", wide, free, Asked(1024, width=512, window=100))


def test_sizes_for_people() -> None:
    assert [told(n) for n in (5, 2.5e3, 999e6, 1.2e9, 13.48e9, 141e9)] == [
        *("5 bytes", "2.5 kB", "999 MB", "1.2 GB", "13.5 GB", "141 GB")
    ]
    assert [told(n) for n in (999.4e9, 999.6e9, 1.36e12, 999.7e12, 13.4e15)] == [
        *("999 GB", "1 TB", "1.36 TB", "1,000 TB", "13,400 TB")
    ]


@pytest.mark.parametrize("free", [20 * GB, 30 * GB, 40 * GB])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_hint_leaves_the_room_that_it_promises(free: float, compute: str, kind: str) -> None:
    size = 26.96e9 if compute == "float32" else 13.48e9
    model = replace(LLAMA_7B, weights=compute, compute=compute, weight_bytes=size, linear=6.4e9)
    for wanted in (model, *(form for _, form in smaller_forms(model, kind))):
        with contextlib.suppress(LadeError):
            context, notice = room("m", wanted, free, Asked(131_072, width=24), kind=kind)
            promised = re.search(r"; (--.*) leaves room for ([\d,]+)$", notice or "")
            if promised:
                form = dict(smaller_forms(wanted, kind))[promised[1]]
                tokens = int(promised[2].replace(",", ""))
                assert tokens > context
                need = estimate(form, context=tokens, width=24)
                assert need.total <= free


def test_what_is_quantised_already_is_offered_no_quantising() -> None:
    packed = replace(LLAMA_7B, weights="gptq", weight_bytes=4e9, linear=0.0)
    unpacked = replace(LLAMA_7B, linear=0.0)  # FP8 on a device that cannot multiply it
    for shape in (packed, unpacked):
        assert not [flag for flag, _ in smaller_forms(shape) if "--quantize" in flag]
