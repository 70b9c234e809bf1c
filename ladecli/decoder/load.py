"""From a loaded model to a decoder: which forward runs it, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .config import CAPTURED_WIDTHS, GROWTH, PREFILL_CHUNK
from .decoder import Decoder
from .errors import UnsupportedModelError
from .faults import reason_of
from .kv_cache import KVCache
from .layout import words_for
from .model.attention import CapturedMask, DeviceMask, triton_available
from .model.attention.triton import gpu_of, plan, power_of_two, triton_attention
from .model.families import ModelFacts, examine
from .model.forward import Forward
from .model.own_cache import OwnCache, OwnCacheModel
from .model.stock import StockModel, input_device
from .model.transformer import TorchOps, Transformer, can_run
from .model.trial import Trial
from .quiet import quiet
from .run.captured import Capture, CudaGraphs
from .run.runner import Runner, uses_triton

CACHE_SHARE = 0.5
"""Of a GPU's free memory, what the cache may take at once."""


def load_decoder(
    model: Any,
    *,
    attention: str = "auto",
    max_context: int | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    cuda_graphs: bool = False,
    compile: bool = False,
    kernels: bool = True,
    join: bool = True,
    pack: bool = True,
    capture: Capture | None = None,
) -> Decoder:
    """A decoder for a causal language model of transformers, in evaluation mode.

    Args:
        model: the model; with `join`, its linear layers share joined weights afterwards.
        attention: name of the attention backend.
        max_context: the most tokens of prompt and text together; None for the model's own.
        prefill_chunk: prompt tokens per forward.
        cuda_graphs: whether steps are captured, where that works.
        compile: whether the forward is compiled before it is captured.
        kernels: whether Triton kernels may be used.
        join: whether weights may be joined; not for a model that belongs to the caller.
        pack: whether float32 weights on a CPU may be stored twice, for speed.
        capture: captures work in place of CUDA graphs, on any device.

    Raises:
        UnsupportedModelError: the model cannot be decoded here.
        NaNLogitsError: its weights are damaged.
        DeviceLostError: the GPU met a fault.
    """
    facts = examine(model.config)
    limit = min(max_context or facts.context, facts.context)
    device = input_device(model)
    on_gpu = device.type == "cuda"
    kernels = kernels and on_gpu and triton_available(device)
    if attention == "auto" and not kernels:
        attention = "sdpa"
    # What the compiler makes of the small operations is as good.
    kernels = kernels and not compile
    widths = *CAPTURED_WIDTHS, prefill_chunk
    forward, notices, trial = make_forward(
        *(model, facts, attention),
        join=join,
        pack=pack,
        kernels=widths if kernels else (),
        slots=limit + GROWTH,
    )
    runner: Runner | None = None
    on_one_device = {parameter.device for parameter in model.parameters()} == {device}
    if cuda_graphs and trial is not None and on_one_device and (on_gpu or capture is not None):
        runner, more = _captured(forward, trial, limit, compile=compile, capture=capture)
        notices += more
    runner = runner or Runner(forward, new_cache(forward, limit))
    runner.notices += notices
    return Decoder(runner, facts, max_context=limit, prefill_chunk=prefill_chunk)


def new_cache(forward: Forward, max_context: int) -> KVCache:
    """An empty cache for texts of at most `max_context` tokens.

    On a GPU with plenty of memory it is allocated at once: wherever it grows, steps are captured
    anew.
    """
    if isinstance(forward, OwnCacheModel):
        return OwnCache()
    # A step's own tokens stand after the text.
    slots, first = max_context + GROWTH, 0
    shapes = forward.layer_shapes
    if forward.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(forward.device)
        numbers = [each.heads * (each.key_size + each.value_size) for each in shapes]
        per_slot = sum(numbers) * shapes[0].dtype.itemsize
        first = min(slots, int(CACHE_SHARE * free) // per_slot)
    return KVCache(shapes, slots, first)


@quiet()
def make_forward(
    model: Any,
    facts: ModelFacts,
    attention: str,
    *,
    join: bool = True,
    pack: bool = True,
    kernels: Sequence[int] = (),
    slots: int = 0,
    not_ours: str | None = None,
) -> tuple[Forward, list[str], Trial | None]:
    """The first forward whose trial steps are right: ours, the model's under our attention, or the
    model as it is, without drafts.

    Args:
        model, facts, attention, join, pack: see `load_decoder`.
        kernels: widths of the steps that Triton kernels are for; () to do without them.
        slots: of the cache that they will see.
        not_ours: why our forward is not to be tried; see `modified.intervention`.

    Returns:
        The forward, notices, and the trial where drafts can be verified.

    Raises:
        UnsupportedModelError: the model's own forward fails, or cannot continue a text.
        NaNLogitsError: the model's logits are NaN.
    """
    why = facts.no_trees
    if why is None:
        try:
            trial = Trial.of(model, facts)
            given = attention, trial, join, pack, kernels, slots, not_ours
            return *_verifying(model, facts, *given), trial
        except UnsupportedModelError as error:
            why = str(error)
    plain = OwnCacheModel(model)
    how = "with chains of drafts instead of trees"
    if plain.drafts == "none":
        how = "one token at a time, without drafts"
    return plain, [f"{facts.family!r} is decoded {how}: {why}"], None


def _verifying(
    model: Any,
    facts: ModelFacts,
    attention: str,
    trial: Trial,
    join: bool,
    pack: bool,
    kernels: Sequence[int],
    slots: int,
    not_ours: str | None,
) -> tuple[Forward, list[str]]:
    """A forward that verifies drafts, and notices; `UnsupportedModelError` if there is none."""
    notices: list[str] = []
    why: str | None
    if can_run(model) and not_ours is not None:
        notices = [f"steps run through transformers' forward, and slower: {not_ours}"]
    elif can_run(model):
        try:
            ours = Transformer(model, facts, attention, join=join, pack=pack)
        except AttributeError as error:  # a layer lacks a part that the family has
            why = f"failed: {reason_of(error)}"
        else:
            ours.use(attention, _triton_ops() if kernels else None)
            if ours.device.type == "cuda":
                torch.cuda.empty_cache()  # what the parts of joined weights were
            if ours.attention == "triton":
                # What cannot be compiled fails in the trial too, or in a step, which goes on
                # without.
                with suppress(Exception):
                    compile_attention(ours, kernels, slots)
            why = _failure(ours, trial, notices)
            if why is None:
                return ours, notices
        notices = [
            "steps run through transformers' forward, and slower: our own forward of"
            f" {facts.family!r} {why}"
        ]
    stock = StockModel(model, trial.shapes, attention)
    why = _failure(stock, trial, notices)
    window = facts.sliding_window
    slides = window is not None and window < facts.context
    if why is None and slides and window not in stock.sliding_windows:
        # The trial is shorter than the window, so it could not see what is hidden beyond it.
        why = f"never asked for its sliding window of {window}"
    if why is not None:
        raise UnsupportedModelError(f"a trial step {why}")
    return stock, notices


@torch.inference_mode()
def compile_attention(
    model: Transformer, widths: Sequence[int], slots: int, workers: int | None = None
) -> None:
    """Compile Triton attention for all widths of steps at once, in threads.

    Args:
        model: on a GPU that Triton knows.
        widths: tokens of the steps.
        slots: of the cache.
        workers: threads; None for as many as there are cores.

    Raises:
        Exception: whatever Triton raises.
    """
    layer, device = model.layers[0], model.device
    size, groups = layer.head_size, layer.heads // layer.kv_heads
    # As many slots as the cache has, all in the place of one.
    key = torch.ones((1, layer.kv_heads, 1, size), dtype=model.dtype, device=device)
    keys = key.expand(-1, -1, slots, -1)
    # By what is compiled for it, one of the widths.
    launches = {}
    for width in widths:
        cut = plan(width, groups, layer.kv_heads, size, slots, key.element_size(), gpu_of(device))
        launches[replace(cut, splits=power_of_two(cut.splits))] = width
    calls = []
    for width in launches.values():
        query = key.new_ones((1, width, layer.heads, size)).transpose(1, 2)
        sizes = (1, width, (width, words_for(width)))
        numbers = [torch.ones(each, dtype=torch.int32, device=device) for each in sizes]
        mask = CapturedMask(DeviceMask(*numbers), slots)
        calls += [
            partial(triton_attention, query, keys, keys, mask, 1.0, window, softcap)
            for window, softcap in {(each.sliding_window, each.softcap) for each in model.layers}
        ]
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def _triton_ops() -> TorchOps:
    # It imports triton.
    from .model.triton_kernels import TritonOps

    return TritonOps()


def _failure(forward: Forward, trial: Trial, notices: list[str]) -> str | None:
    """How trial steps of a forward fail, also with torch's own kernels; None if they do not."""
    why = trial.failure(Runner(forward, trial.new_cache(forward)))
    if why is None or (forward.attention == "sdpa" and not forward.kernels):
        return why
    kernels = "Triton kernels" if uses_triton(forward) else f"attention {forward.attention!r}"
    forward.use("sdpa")
    without = trial.failure(Runner(forward, trial.new_cache(forward)))
    if without is None:
        notices.append(f"steps run without {kernels}, and slower: a trial step {why}")
    return without


def _captured(
    forward: Forward, trial: Trial, max_context: int, *, compile: bool, capture: Capture | None
) -> tuple[Runner | None, list[str]]:
    """A runner of captured steps, if trial steps of one are right, and notices.

    Where they fail, they are tried without the compiler, then without Triton kernels.
    """
    attention, kernels = forward.attention, forward.kernels
    options: dict[str, Any] = {"facts": trial.facts, "max_context": max_context, "capture": capture}
    notices: list[str] = []
    while True:
        tried = CudaGraphs(forward, trial.new_cache(forward), compile=compile, **options)
        why = trial.failure(tried)
        why = tried.given_up or (why and f"a trial step {why}")
        if why is None:
            cache = new_cache(forward, max_context)
            return CudaGraphs(forward, cache, compile=compile, **options), notices
        if compile:
            compile = False
            notices.append(f"steps are not compiled, and slower: {why}")
        elif uses_triton(forward):
            forward.use("sdpa")
            notices.append(f"steps run without Triton kernels, and slower: {why}")
        else:
            # They were not to blame.
            forward.use(attention, _triton_ops() if kernels else None)
            return None, [f"steps run without CUDA graphs, and slower: {why}"]
