"""From a loaded model to a decoder: ways to run its steps, the fastest first, tried in order.

A way is a forward (ours, transformers' under our attention), its attention, operations between
products (Triton's, torch's), and whether steps are captured.  The first one whose trial steps are
right is taken; where none is, the model decodes as it is, with a cache of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from ..config import CAPTURED_WIDTHS, GROWTH, chunk_on
from ..decoder import Decoder
from ..errors import UnsupportedModelError
from ..faults import reason_of
from ..kv_cache import KVCache
from ..model.building import can_run
from ..model.families import ModelFacts
from ..model.forward import Forward
from ..model.layer import TorchOps
from ..model.rotary import facts_of
from ..model.transformer import Transformer
from ..runner import Runner, uses_triton
from .cuda_graphs import Capture, CudaGraphs
from .quiet import quiet
from .transformers_cache import OwnCache, OwnCacheModel
from .transformers_forward import StockModel, input_device
from .trial import Trial
from .triton_attention import compile_attention, triton_available
from .weights import restore

NOT_INVARIANT = (
    "steps are not batch-invariant: this model's products round differently for several tokens than"
    " for one"
)
CACHE_SHARE = 0.5
"""Of a GPU's free memory, what the cache may take at once."""

MakeRunner = Callable[[Forward, KVCache], Runner]
"""Makes what runs the steps of a forward: one operation after the other, or captured."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ways may have."""

    attention: str = "auto"
    join: bool = True
    """Whether weights may be joined; not for a model that belongs to the caller."""
    pack: bool = True
    """Whether weights on a CPU may be held twice, for speed."""
    kernels: Sequence[int] = ()
    """Widths of the steps that Triton kernels are for; () to do without them."""
    slots: int = 0
    """Of the cache that these will see."""
    make_captured: MakeRunner | None = None
    """Makes a runner of captured steps; None to do without."""
    on_layer: Callable[[int, int], None] | None = None
    """Is called after each layer; see `load_decoder`."""
    not_ours: str | None = None
    """Why our forward is not to be tried; see `modified.intervention`."""


class Way(NamedTuple):
    """How the steps of a model are run."""

    forward: Forward
    make_runner: MakeRunner = Runner
    notices: tuple[str, ...] = ()
    """What it does without, and why."""
    invariant: bool = False
    """Whether steps are batch-invariant."""


def load_decoder(
    model: Any,
    *,
    attention: str = "auto",
    max_context: int | None = None,
    prefill_chunk: int | None = None,
    cuda_graphs: bool = False,
    kernels: bool = True,
    join: bool = True,
    pack: bool = True,
    capture: Capture | None = None,
    on_layer: Callable[[int, int], None] | None = None,
) -> Decoder:
    """A decoder for a causal language model of transformers, in evaluation mode.

    Args:
        model: the model; with `join`, its linear layers share joined weights afterwards.
        attention: name of the attention backend.
        max_context: the most tokens of prompt and text together; None for the model's own.
        prefill_chunk: prompt tokens per forward; None for what suits the device.
        cuda_graphs: whether steps are captured, where that works.
        kernels: whether Triton kernels may be used.
        join: whether weights may be joined; not for a model that belongs to the caller.
        pack: whether weights on a CPU may be held twice, for speed.
        capture: captures work in place of CUDA graphs, on any device.
        on_layer: called with the number of layers whose weights are prepared, and that of all.

    Raises:
        UnsupportedModelError: the model cannot be decoded here.
        NaNLogitsError: its weights are damaged.
        DeviceLostError: the GPU met a fault.
    """
    facts = facts_of(model)
    limit = min(max_context or facts.context, facts.most_context)
    device = input_device(model)
    on_gpu = device.type == "cuda"
    kernels = kernels and on_gpu and triton_available(device)
    if attention == "auto" and not kernels:
        attention = "sdpa"
    captured: MakeRunner | None = None
    on_one_device = {parameter.device for parameter in model.parameters()} == {device}
    if cuda_graphs and on_one_device and (on_gpu or capture is not None):
        captured = partial(CudaGraphs, facts=facts, max_context=limit, capture=capture)
    widths = (*CAPTURED_WIDTHS, prefill_chunk or chunk_on(device.type)) if kernels else ()
    wanted = Wanted(attention, join, pack, widths, limit + GROWTH, captured, on_layer)
    way = find_way(model, facts, wanted)
    if not on_gpu:
        return_freed_memory()
    runner = way.make_runner(way.forward, new_cache(way.forward, limit))
    runner.notices += way.notices
    if attention == "invariant" and not way.invariant and way.forward.drafts != "none":
        runner.notices.append(NOT_INVARIANT)
    return Decoder(
        *(runner, facts),
        max_context=limit,
        prefill_chunk=prefill_chunk,
        batch_invariant=way.invariant,
    )


def return_freed_memory() -> None:
    """Return what a load freed to the system.  glibc would keep it: half of a model's weights.

    Other C libraries return it by themselves.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def new_cache(forward: Forward, max_context: int) -> KVCache:
    """An empty cache for texts of at most `max_context` tokens.

    On a GPU with plenty of memory it is allocated at once: wherever it grows, steps are captured
    anew.
    """
    if isinstance(forward, OwnCacheModel):
        return OwnCache(forward.returns_state)
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
def find_way(model: Any, facts: ModelFacts, wanted: Wanted) -> Way:
    """The first way whose trial steps are right; else the model as it is.

    Raises:
        UnsupportedModelError: the model's own forward fails, or cannot continue a text.
        NaNLogitsError: the model's logits are NaN.
    """
    restore(model)  # another decoder of it may have taken its weights
    why = facts.no_trees
    if why is None:
        try:
            return _first_right(model, wanted, Trial.of(model, facts))
        except UnsupportedModelError as error:
            why = str(error)
    plain = OwnCacheModel(model)
    how = "with chains of drafts instead of trees"
    if plain.drafts == "none":
        how = "one token at a time, without drafts"
    return Way(plain, notices=(f"{facts.family!r} is decoded {how}: {why}",))


def _first_right(model: Any, wanted: Wanted, trial: Trial) -> Way:
    """The first way whose trial steps are right; `UnsupportedModelError` if there is none."""
    best: list[str] = []
    reasons = [wanted.not_ours] if wanted.not_ours else []
    for number, way in enumerate(_ways(model, wanted, trial, reasons)):
        parts = _parts(way)
        if number == 0:
            best = parts
        why = _failure(way, trial, wanted)
        if why is None:
            how = []
            if isinstance(way.forward, StockModel) and can_run(model):
                how = [f"through transformers' forward instead of ours of {trial.facts.family!r}"]
            how += [f"without {part}" for part in best if part not in parts]
            lines = [f"steps run {' and '.join(how)}, and slower: {reasons[-1]}"] if how else []
            invariant = wanted.attention == "invariant" and _is_invariant(way, trial)
            return way._replace(notices=(*lines,), invariant=invariant)
        reasons.append(why)
    raise UnsupportedModelError(reasons[-1])


def _is_invariant(way: Way, trial: Trial) -> bool:
    # Other products may depend on rows that a trial does not have.
    if not (isinstance(way.forward, Transformer) and way.forward.rows_alike):
        return False
    return trial.is_batch_invariant(way.make_runner(way.forward, trial.new_cache(way.forward)))


def _ways(model: Any, wanted: Wanted, trial: Trial, reasons: list[str]) -> Iterator[Way]:
    """All ways for a model, the fastest first; why ours cannot be made joins `reasons`.

    A way holds until the next one is asked for: those of one forward share it.
    """
    makers = (Runner,) if wanted.make_captured is None else (wanted.make_captured, Runner)
    for forward, ops in _forwards(model, wanted, trial, reasons):
        # What is left without Triton, or a backend that was asked for, is torch's own.
        operations = dict.fromkeys([(forward.attention, ops), ("sdpa", None)])
        for make_runner, (attention, each) in product(makers, operations):
            forward.use(attention, each)
            yield Way(forward, make_runner)


def _forwards(
    model: Any, wanted: Wanted, trial: Trial, reasons: list[str]
) -> Iterator[tuple[Forward, TorchOps | None]]:
    """Our own forward with its operations, and transformers' with our attention."""
    if can_run(model) and wanted.not_ours is None:
        try:
            ours = Transformer(
                *(model, trial.facts, wanted.attention),
                join=wanted.join,
                pack=wanted.pack,
                on_layer=wanted.on_layer,
            )
        except AttributeError as error:  # a layer lacks a part that the family has
            reasons.append(f"a trial step failed: {reason_of(error)}")
        else:
            if ours.device.type == "cuda":
                torch.cuda.empty_cache()  # what the parts of joined weights were
            if ours.attention == "triton":
                # What cannot be compiled fails in the trial too, or in a step, which goes on
                # without.
                with suppress(Exception):
                    compile_attention(ours, wanted.kernels, wanted.slots)
            ops = None
            if wanted.kernels:
                from .triton_ops import TritonOps  # it imports triton

                ops = TritonOps()
            yield ours, ops
            restore(model)  # ours was wrong
    yield StockModel(model, trial.shapes, wanted.attention), None


def _parts(way: Way) -> list[str]:
    """What makes the steps of a way fast, beside its forward."""
    attention = way.forward.attention
    known = {
        "Triton kernels": uses_triton(way.forward),
        f"attention {attention!r}": attention not in ("sdpa", "triton"),
        "CUDA graphs": way.make_runner is not Runner,
    }
    return [part for part, has in known.items() if has]


def _failure(way: Way, trial: Trial, wanted: Wanted) -> str | None:
    """Why trial steps of a way are wrong; None if they are right."""
    cache = trial.new_cache(way.forward)
    if way.forward.device.type == "cuda" and wanted.slots:
        # As large as it will be, if memory allows: kernels split the work by its slots.
        cache = new_cache(way.forward, wanted.slots - GROWTH)
    runner = way.make_runner(way.forward, cache)
    why = trial.failure(runner)
    if isinstance(runner, CudaGraphs) and runner.given_up is not None:
        return runner.given_up
    if why is None and isinstance(way.forward, StockModel):
        # The trial is shorter than a window, so it could not see what is hidden beyond it.
        window = trial.facts.sliding_window
        slides = window is not None and window < trial.facts.context
        if slides and window not in way.forward.sliding_windows:
            why = f"never asked for its sliding window of {window}"
    return why and f"a trial step {why}"
