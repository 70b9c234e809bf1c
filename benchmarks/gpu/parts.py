"""The parts of the check: each prints its figures as lines of JSON."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from widen import widen

from ladecli.decoder import layout
from ladecli.decoder.backends.cuda_graphs import Capture, GraphCapture, Work
from ladecli.decoder.backends.load import load_decoder
from ladecli.decoder.config import CAPTURED_WIDTHS, Limits, LookaheadConfig, SamplingConfig
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.events import Step
from ladecli.decoder.executor import whole as logits_of
from ladecli.decoder.sampling import Sampler
from ladecli.decoder.strategies import make_strategy
from ladecli.decoder.strategy import Draft
from ladecli.decoder.tree import TokenTree

SUCCESSORS = 4
"""Of every output, as lookahead asks for them."""
ROUNDS, REPEATS = 5, 8
"""Turns in which widths are timed, and launches in each."""
GREEDY, DRAWN = SamplingConfig(), SamplingConfig(temperature=0.8, top_p=0.95)
CACHE_BYTES = 1 << 27
"""More than the cache of any GPU holds."""

_NAMES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)
SHAPES: dict[str, tuple[str, tuple[int, ...], bool]] = {
    # Family, sizes, and whether embeddings are tied.
    # Llama-3-8B, and two of Qwen2.5-Coder.
    "8b": ("llama", (128256, 4096, 14336, 32, 32, 8, 17408), False),
    "7b": ("qwen2", (152064, 3584, 18944, 28, 28, 4, 17408), False),
    "1.5b": ("qwen2", (151936, 1536, 8960, 28, 12, 2, 17408), True),
    "tiny": ("llama", (300, 64, 128, 2, 4, 4, 512), False),
    "tiny-gqa": ("qwen2", (300, 64, 128, 2, 4, 2, 512), True),
}
REHEARSAL = "--rehearse" in sys.argv
DEVICE = torch.device("cpu" if REHEARSAL else "cuda:0")
DTYPE = torch.float32 if REHEARSAL else torch.bfloat16
CONTEXTS = (16, 100) if REHEARSAL else (128, 1024, 3840, 16384)
WIDTHS = (1, 8) if REHEARSAL else (1, 8, 16, 32, 64, 128)


def show(figures: dict[str, Any]) -> None:
    """Hand figures to the parent process."""
    print(json.dumps(figures), flush=True)


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What work returns, and seconds until the device is done with it."""
    synchronize()
    began = time.perf_counter()
    result = work()
    synchronize()
    return result, time.perf_counter() - began


def burst(work: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of the device for each of several launches, one after the other."""
    if DEVICE.type != "cuda":
        return [timed(work)[1] for _ in range(repeats)]
    work()  # the device waits for its launch, so it does not count
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(DEVICE)
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]


def memory() -> dict[str, float]:
    """GB of the device: in tensors, taken by torch, and the most taken so far."""
    if DEVICE.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    counts = {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "most_reserved": torch.cuda.max_memory_reserved(),
        "used": total - free,
    }
    return {name: round(count / 1e9, 3) for name, count in counts.items()}


def again(work: Work) -> Work:
    """Stands for a capture on a CPU: what it returns does the work again."""
    work()
    return torch.inference_mode()(work)


class Watch:
    """Captures work; keeps the seconds that captures took, and their launches, in order."""

    def __init__(self) -> None:
        self._capture = again if REHEARSAL else GraphCapture(DEVICE)
        self.seconds: list[float] = []
        self.launches: list[Work] = []

    def __call__(self, work: Work) -> Work:
        """Capture work."""
        launch, seconds = timed(partial(self._capture, work))
        self.seconds.append(round(seconds, 4))
        self.launches.append(launch)
        return launch


def random_model(name: str) -> Any:
    """A model of random numbers in a true shape: what a step costs is the same."""
    family, sizes, tied = SHAPES[name]
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family]
    config = config_class(
        **dict(zip(_NAMES, sizes, strict=True)),
        tie_word_embeddings=tied,
        eos_token_id=None,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    return model.eval().requires_grad_(False)


def model_in_shape(name: str, small: str | None) -> Any:
    """A random model, or one that answers as the model in the folder `small`."""
    if small is None:
        return random_model(name)
    read = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=DTYPE)
    return widen(read.to(DEVICE), SHAPES[name][1][1:-1])


def copy_rate() -> float:
    """Bytes per second of a copy on the device, bytes read and written both counted."""
    source = torch.zeros(2 * CACHE_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 4 * CACHE_BYTES / min(timed(partial(target.copy_, source))[1] for _ in range(20))


def make(name: str, folder: str, small: str | None = None) -> None:
    """Save a model: random, with a tokenizer whose every token is a word, or one that answers as
    the model in the folder `small`."""
    model, seconds = timed(partial(model_in_shape, name, small))
    tokenizer = words(model.config.vocab_size)
    if small is not None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    show({"made_seconds": round(seconds, 1)})
    _, seconds = timed(partial(model.save_pretrained, folder))
    tokenizer.save_pretrained(folder)
    show({"saved_seconds": round(seconds, 1)})


def words(vocabulary: int) -> Any:
    """A tokenizer whose every token is a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def load(folder: str) -> None:
    """Load a model as `lade` does: seconds and memory of each stage."""
    show({"before": memory()})
    read = partial(transformers.AutoModelForCausalLM.from_pretrained, folder, dtype=DTYPE)
    model, seconds = timed(lambda: read(device_map={"": DEVICE}).eval())
    show({"weights_seconds": round(seconds, 2), "with_weights": memory()})
    decoder, seconds = timed(partial(decoder_for, model))
    show({"decoder_seconds": round(seconds, 2), "joined": memory()})
    show({"notices": decoder.executor.notices})
    prompt = [7 * i % 200 for i in range(64)]
    one, seconds = timed(partial(answer, decoder, prompt, 1))
    show({"first_token_seconds": round(seconds, 3), "tokens": len(one)})
    _, seconds = timed(partial(answer, decoder, prompt, 32))
    show({"next_32_seconds": round(seconds, 3), "captured": decoder.executor.graphs_made})
    show({"with_graphs": memory()})


def decoder_for(model: Any, capture: Capture | None = again if REHEARSAL else None) -> Decoder:
    """The decoder that `lade` would make."""
    return load_decoder(model, cuda_graphs=True, capture=capture)


def answer(
    decoder: Decoder, prompt: Sequence[int], new: int, strategy: str = "autoregressive"
) -> list[int]:
    """The tokens of an answer."""
    chosen = make_strategy(strategy, LookaheadConfig())
    events = decoder.generate(prompt, chosen, None, Limits(new))
    steps = [event for event in events if isinstance(event, Step)]
    return [token.id for step in steps for token in step.tokens]


def invariance(name: str, small: str | None = None) -> None:
    """Texts by lookahead that equal those of plain decoding, without and with --batch-invariant."""
    model, draw = model_in_shape(name, small), random.Random(0)
    texts, new = (2, 8) if REHEARSAL else (14, 128)
    vocabulary = model.config.vocab_size
    prompts = [[draw.randrange(vocabulary) for _ in range(64)] for _ in range(texts)]
    for attention in ("auto", "invariant"):
        # On a CPU it does not read masks of captured steps.
        decoder = load_decoder(model, attention=attention, cuda_graphs=not REHEARSAL)
        found = {
            "promised": decoder.batch_invariant,
            "notices": decoder.executor.notices,
            **{"texts": 0, "equal": 0, "plain_seconds": 0.0, "lookahead_seconds": 0.0},
        }
        for prompt in prompts:
            plain, took = timed(partial(answer, decoder, prompt, new))
            found["plain_seconds"] += round(took, 3)
            ahead, took = timed(partial(answer, decoder, prompt, new, "lookahead"))
            found["lookahead_seconds"] += round(took, 3)
            found["texts"] += 1
            found["equal"] += plain == ahead
            show({attention: found})


def steps(name: str) -> None:
    """Steps by width and length of the text: on the device, and as the loop sees them."""
    model, watch, rate = random_model(name), Watch(), copy_rate()
    reads = sum(each.nbytes for each in model.parameters())
    if not model.config.tie_word_embeddings:
        reads -= model.get_input_embeddings().weight.nbytes
    decoder = decoder_for(model, watch)
    watch.launches.clear()  # those of the trial at load
    executor = decoder.executor
    show({"copy_bytes_per_second": rate, "read_bytes": reads})
    show({"attention": executor.model.operations.name, "notices": executor.notices})
    launches: dict[int, Work] = {}
    for context in CONTEXTS:
        if context + CAPTURED_WIDTHS[-1] > decoder.max_context:
            break
        fill(decoder, context)
        drafts = {width: random_draft(width) for width in WIDTHS}
        layouts = {width: layout.build([3], context, draft) for width, draft in drafts.items()}
        for width, step in layouts.items():
            before = len(watch.launches)
            executor.launch(step, logits_of)()
            if len(watch.launches) > before:
                launches[width] = watch.launches[-1]
        if not launches:
            show({"failed_because": "no step was captured"})
            return
        device, greedy, drawn = ({width: [] for width in WIDTHS} for _ in range(3))
        for turn in range(1 if REHEARSAL else ROUNDS):
            for width in WIDTHS[:: -1 if turn % 2 else 1]:
                device[width] += burst(launches[width], REPEATS)
                for found, sampling in ((greedy, GREEDY), (drawn, DRAWN)):
                    read = partial(whole_step, decoder, layouts[width], drafts[width], sampling)
                    found[width] += [timed(read)[1] for _ in range(REPEATS)]
        seconds = {width: statistics.median(device[width]) for width in WIDTHS}
        figures = {
            "device_ms": {width: round(1e3 * s, 3) for width, s in seconds.items()},
            "whole_ms": {w: round(1e3 * statistics.median(greedy[w]), 3) for w in WIDTHS},
            "drawn_ms": {w: round(1e3 * statistics.median(drawn[w]), 3) for w in WIDTHS},
            "of_plain": {w: round(s / seconds[1], 3) for w, s in seconds.items()},
            "plain_share_of_copy": round(reads / seconds[1] / rate, 3),
        }
        show({f"context {context}": figures})
        if context == CONTEXTS[min(1, len(CONTEXTS) - 1)]:
            show({"capture_seconds": watch.seconds})
            for width in dict.fromkeys((1, WIDTHS[-2])):
                show({f"profile of width {width}": profile(launches[width])})


@torch.inference_mode()
def products(name: str) -> None:
    """Products with the weights of a layer and of the head, by torch and by Triton's tiles:
    microseconds by rows, and the shares of a copy's bandwidth at which they read the weight."""
    _, (vocabulary, hidden, inner, _, heads, kv_heads, _), _ = SHAPES[name]
    size, rate = hidden // heads, copy_rate()
    capture = again if REHEARSAL else GraphCapture(DEVICE)
    weights = {
        "query, key and value": ((heads + 2 * kv_heads) * size, hidden),
        "output": (hidden, heads * size),
        "gate and up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (vocabulary, hidden),
    }
    for what, (outputs, inputs) in weights.items():
        count = outputs * inputs * DTYPE.itemsize
        # One after the other they come from memory, as in a step.
        several = [
            torch.randn(outputs, inputs, device=DEVICE, dtype=DTYPE)
            for _ in range(1 if REHEARSAL else max(CACHE_BYTES // count, 1) + 1)
        ]
        for way, calls in _ways(several).items():
            times = {}
            for rows in WIDTHS:
                x = torch.randn(rows, inputs, device=DEVICE, dtype=DTYPE)
                # A launch takes the host longer than a small product the device.
                work = capture(partial(_pass, calls, x))
                times[rows] = statistics.median(burst(work, REPEATS)) / len(several)
            figures = {
                "microseconds": {rows: round(1e6 * time, 1) for rows, time in times.items()},
                "shares_of_copy": {w: round(count / t / rate, 3) for w, t in times.items()},
            }
            show({f"{what}, {way}": figures})


def _ways(weights: Sequence[torch.Tensor]) -> dict[str, list[Callable[[torch.Tensor], Any]]]:
    """What multiplies with each weight: the library, and on a GPU our own tiles of each size."""
    ways: dict[str, Any] = {"library": [partial(F.linear, weight=weight) for weight in weights]}
    if not REHEARSAL:
        from ladecli.decoder.backends.triton_product import BLOCKS, SkinnyProduct

        own = [SkinnyProduct(weight, None, alike=True) for weight in weights]
        for block in BLOCKS:
            ways[f"tiles of {block}"] = [partial(each.by_tiles, block=block) for each in own]
    return ways


def _pass(calls: Sequence[Callable[[torch.Tensor], Any]], x: torch.Tensor) -> None:
    for call in calls:
        call(x)


@torch.no_grad()
def fill(decoder: Decoder, context: int) -> None:
    """Have the cache hold random keys and values."""
    cache = decoder.cache
    cache.reserve(context + 2 * CAPTURED_WIDTHS[-1])
    for tensor in cache.tensors:
        tensor[..., :context, :].normal_()
    cache.length = context


def random_draft(width: int) -> Draft:
    """A random tree for a step of `width` tokens, whose nodes mostly continue the last ones."""
    draw, tree = random.Random(width), TokenTree()
    for node in range(width - 1):
        tree.grow(draw.randrange(max(-1, node - 6), node), draw.randrange(200), "context")
    return Draft(tree, successors=SUCCESSORS if tree else 0)


def whole_step(
    decoder: Decoder, step: layout.StepLayout, draft: Draft, sampling: SamplingConfig
) -> None:
    """A step as the loop runs it, up to the tokens on the host."""
    sampler = Sampler(sampling, most_probable=decoder.executor.ranking)
    decoder.executor.launch(step, partial(sampler.read, layout=step, draft=draft))()


def profile(launch: Work) -> list[list[Any]]:
    """Kernels of one captured step: name, how many, and microseconds of the device in all."""
    from torch.profiler import ProfilerActivity

    on_gpu = DEVICE.type == "cuda"
    kinds = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    runs = 1 if REHEARSAL else 10
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(runs):
            launch()
        synchronize()
    rows = [
        [
            event.key[:70],
            event.count // runs,
            round((event.device_time_total if on_gpu else event.cpu_time_total) / runs, 1),
        ]
        for event in found.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[2])[:16]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("part", choices=["make", "load", "steps", "products", "invariance"])
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()
    globals()[given.part](*given.arguments)
