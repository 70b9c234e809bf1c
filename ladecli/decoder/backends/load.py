"""From a loaded model to a decoder: backends that could run its steps are tried, the fastest first.

A backend is a forward (ours, transformers' under our attention), its attention, operations between
products (Triton's, torch's), and whether steps are captured.  The first one whose trial steps are
right is taken; if none is, the model decodes as it is, with a cache of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from ..config import CAPTURED_WIDTHS, GROWTH, chunk_on
from ..decoder import Decoder
from ..errors import UnsupportedModelError
from ..executor import Chained, Executor
from ..faults import reason_of
from ..kv_cache import KVCache
from ..model.building import can_run
from ..model.families import ModelFacts
from ..model.forward import Forward
from ..model.transformer import Transformer
from .attention import choose_operations
from .cpu_layouts import ROOMS
from .cuda_graphs import Capture, CudaGraphs
from .int8 import holds_int8
from .quiet import quiet
from .recurrent import RecurrentCache
from .stored import make_plain
from .transformers_cache import OwnCache, OwnCacheModel
from .transformers_forward import StockModel, input_device
from .trial import Trial, facts_of
from .triton_attention import compile_attention, triton_available
from .weights import make_transformer, restore, takes_weights

NOT_INVARIANT = (
    "steps are not batch-invariant: this model's products round differently for several tokens than"
    " for one"
)
CACHE_SHARE = 0.5
"""The share of a GPU's free memory that the cache may take at once."""

MakeExecutor = Callable[[Forward, KVCache, ModelFacts, int | None, int | None], Executor]
"""Makes what runs the steps of a forward: one operation after the other, or captured."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for choosing a backend."""

    attention: str = "auto"
    join: bool = True
    """True if weights may be joined; False for a model that belongs to the caller."""
    pack: bool = True
    """True if weights on a CPU may be stored twice, for speed."""
    kernels: Sequence[int] = ()
    """Widths of the steps that Triton kernels are for; () to do without them."""
    max_context: int = 0
    """The most tokens of prompt and text together; 0 if that is not known yet."""
    make_captured: MakeExecutor | None = None
    """Makes an executor of captured steps; None to do without."""
    on_layer: Callable[[int, int], None] | None = None
    """Is called after each layer; see `load_decoder`."""
    not_ours: str | None = None
    """Why our forward is not to be tried; see `modified.intervention`."""
    times: MutableMapping[str, Mapping[int, float]] | None = None
    """Saved times of products, see `product_race`; None if times are not saved."""


class Backend(NamedTuple):
    """A forward, and what runs its steps."""

    forward: Forward
    make_executor: MakeExecutor = Executor
    notices: tuple[str, ...] = ()
    """Lines about what it does without, and why."""
    invariant: bool = False
    """True if steps are batch-invariant."""

    def executor(self, facts: ModelFacts, max_context: int, chunk: int | None = None) -> Executor:
        """Return an executor with an empty cache for texts of that many tokens."""
        cache = new_cache(self.forward, max_context)
        return self.make_executor(self.forward, cache, facts, max_context, chunk)


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
    times: MutableMapping[str, Mapping[int, float]] | None = None,
) -> Decoder:
    """Return a decoder for a causal language model of transformers, in evaluation mode.

    Args:
        model: with `join`, its linear layers share joined weights afterwards.
        attention: name of the attention backend.
        max_context: the most tokens of prompt and text together; None for the model's own.
        prefill_chunk: prompt tokens per forward; None for what suits the device.
        cuda_graphs: whether steps are captured, where that works.
        kernels: whether Triton kernels may be used.
        join: whether weights may be joined; not for a model that belongs to the caller.
        pack: whether weights on a CPU may be held twice, for speed.
        capture: captures work in place of CUDA graphs, on any device.
        on_layer: called with the number of layers whose weights are prepared, and that of all.
        times: known seconds of products on a GPU, to which others are added.

    Raises:
        UnsupportedModelError: the model cannot be decoded here.
        NaNLogitsError: its weights are damaged.
        DeviceLostError: the GPU met a fault.
    """
    facts, device = facts_of(model), input_device(model)
    limit, on_gpu = min(max_context or facts.context, facts.most_context), device.type == "cuda"
    kernels = kernels and on_gpu and triton_available(device)
    attention = "sdpa" if attention == "auto" and not kernels else attention
    alone = {parameter.device for parameter in model.parameters()} == {device}
    graphs = cuda_graphs and alone and (on_gpu or capture is not None)
    captured = partial(CudaGraphs, capture=capture) if graphs else None
    widths = (*CAPTURED_WIDTHS, prefill_chunk or chunk_on(device.type)) if kernels else ()
    options = LoadOptions(attention, join, pack, widths, limit, captured, on_layer, times=times)
    backend = choose_backend(model, facts, options)
    return_freed_memory()
    executor = backend.executor(facts, limit, prefill_chunk)
    executor.notices += backend.notices
    if attention == "invariant" and not backend.invariant and backend.forward.drafts != "none":
        executor.notices.append(NOT_INVARIANT)
    takes = isinstance(backend.forward, Transformer) and takes_weights(model, join=join)
    return Decoder(executor, batch_invariant=backend.invariant, keeps_weights=not takes)


def decoder_of(forward: Forward, facts: ModelFacts, max_context: int) -> Decoder:
    """Return a decoder that runs a forward one operation after the other."""
    kind = Executor if forward.drafts == "trees" else Chained
    return Decoder(Backend(forward, kind).executor(facts, max_context))


def return_freed_memory() -> None:
    """Return what a load freed to the system.  glibc would keep it: half of a model's weights.

    Other C libraries return it by themselves.
    """
    ROOMS.clear()
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def new_cache(forward: Forward, max_context: int) -> KVCache:
    """Return an empty cache for texts of at most `max_context` tokens.

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
        numbers = [shape.heads * (shape.key_size + shape.value_size) for shape in shapes]
        per_slot = sum(numbers) * shapes[0].dtype.itemsize  # 0 if all layers are recurrent
        first = min(slots, int(CACHE_SHARE * free) // max(per_slot, 1))
    recurrent = isinstance(forward, StockModel) and forward.recurrent
    return (RecurrentCache if recurrent else KVCache)(shapes, slots, first)


@quiet()
def choose_backend(model: Any, facts: ModelFacts, options: LoadOptions) -> Backend:
    """Return the first backend whose trial steps are right; else the model as it is.

    Raises:
        UnsupportedModelError: the model's own forward fails, or cannot continue a text.
        NaNLogitsError: the model's logits are NaN.
    """
    restore(model)  # another decoder of it may have taken its weights
    why = facts.no_trees
    if why is None:
        if holds_int8(model) and can_run(model):
            with suppress(AttributeError):  # a layer lacks a part, as the trial will say
                # Layers of 8 bits share products from then on, which are packed once so.
                make_transformer(model, facts, join=options.join, on_layer=options.on_layer)
        try:
            return _first_right(model, options, Trial.of(model, facts))
        except UnsupportedModelError as error:
            why = str(error)
    make_plain(model)
    plain = OwnCacheModel(model)
    how = "with chains of drafts instead of trees"
    if plain.drafts == "none":
        how = "one token at a time, without drafts"
    return Backend(plain, Chained, (f"{facts.family!r} is decoded {how}: {why}",))


def _first_right(model: Any, options: LoadOptions, trial: Trial) -> Backend:
    """Return the first backend whose trial steps are right; `UnsupportedModelError` without one."""
    best: list[str] = []
    lines: list[str] = []
    reasons = [options.not_ours] if options.not_ours else []
    for number, backend in enumerate(_backends(model, options, trial, reasons, lines)):
        parts = _parts(backend)
        if number == 0:
            best = parts
        why = _failure(backend, trial, options)
        if why is None:
            how = []
            if isinstance(backend.forward, StockModel) and can_run(model):
                how = [f"through transformers' forward instead of ours of {trial.facts.family!r}"]
            how += [f"without {part}" for part in best if part not in parts]
            if how:
                lines.append(f"steps run {' and '.join(how)}, and slower: {reasons[-1]}")
            invariant = options.attention == "invariant" and _is_invariant(backend, trial)
            return backend._replace(notices=(*lines,), invariant=invariant)
        reasons.append(why)
    raise UnsupportedModelError(reasons[-1])


def _is_invariant(backend: Backend, trial: Trial) -> bool:
    """Return True if steps are batch-invariant: in the trial, and by the kind of each product,
    since some products depend on rows that the trial does not have."""
    forward = backend.forward
    if not isinstance(forward, Transformer):
        return False
    products = [forward.head, *(each for layer in forward.layers for each in layer.products)]
    alike = all(getattr(product, "alike", False) for product in products)
    return alike and trial.is_batch_invariant(_trial_executor(backend, trial))


def _backends(
    model: Any, options: LoadOptions, trial: Trial, reasons: list[str], lines: list[str]
) -> Iterator[Backend]:
    """Yield all backends for a model, the fastest first; why ours cannot be made joins `reasons`,
    and notices about it join `lines`.

    A backend holds until the next one is asked for: those of one forward share it.
    """
    makers = (Executor,) if options.make_captured is None else (options.make_captured, Executor)
    for forward in _forwards(model, options, trial, reasons, lines):
        # What is left without Triton, or the attention that was asked for, is torch's own.
        chosen = forward.operations
        simple = choose_operations("sdpa", forward.device, forward.dtype)
        plain = chosen.name == "sdpa" and chosen.simpler is None
        for make_executor, operations in product(makers, [chosen] if plain else [chosen, simple]):
            forward.use(operations)
            yield Backend(forward, make_executor)


def _forwards(
    model: Any, options: LoadOptions, trial: Trial, reasons: list[str], lines: list[str]
) -> Iterator[Forward]:
    """Yield our own forward, and transformers' with our attention."""
    if can_run(model) and options.not_ours is None:
        try:
            ours = make_transformer(
                *(model, trial.facts, options.attention),
                join=options.join,
                pack=options.pack,
                kernels=bool(options.kernels),
                on_layer=options.on_layer,
            )
        except AttributeError as error:  # a layer lacks a part that the family has
            reasons.append(f"a trial step failed: {reason_of(error)}")
        else:
            if ours.device.type == "cuda":
                torch.cuda.empty_cache()  # what the parts of joined weights were
            if ours.operations.name == "triton":
                # What cannot be compiled fails in the trial too, or in a step, which goes on
                # without.
                with suppress(Exception):
                    compile_attention(ours, options.kernels, options.max_context + GROWTH)
            if options.kernels:
                from .product_race import choose_products, on_gpu  # they import triton

                products = [product for layer in ours.layers for product in layer.products]
                lines += choose_products(
                    [*products, ours.head],
                    {} if options.times is None else options.times,
                    *on_gpu(ours.device),
                )
            yield ours
            restore(model)  # ours was wrong
    make_plain(model)
    yield StockModel(model, trial.shapes, options.attention)


def _parts(backend: Backend) -> list[str]:
    """Return what makes the steps of a backend fast, beside its forward."""
    operations = backend.forward.operations
    known = {
        "Triton kernels": operations.simpler is not None,
        f"attention {operations.name!r}": operations.name not in ("sdpa", "triton"),
        "CUDA graphs": backend.make_executor is not Executor,
    }
    return [part for part, has in known.items() if has]


def _trial_executor(backend: Backend, trial: Trial, max_context: int = 0) -> Executor:
    """Return an executor for a trial; on a GPU with a cache as large as it will be, if memory
    allows: kernels split the work by its slots."""
    on_gpu = backend.forward.device.type == "cuda"
    return backend.executor(trial.facts, max_context if on_gpu and max_context else trial.slots)


def _failure(backend: Backend, trial: Trial, options: LoadOptions) -> str | None:
    """Say why trial steps of a backend are wrong; None if they are right."""
    executor = _trial_executor(backend, trial, options.max_context)
    why = trial.failure(executor)
    if isinstance(executor, CudaGraphs) and executor.given_up is not None:
        return executor.given_up
    if why is None and isinstance(backend.forward, StockModel):
        # The trial is shorter than a window, so it could not see what is hidden beyond it.
        window = trial.facts.sliding_window
        slides = window is not None and window < trial.facts.context
        if slides and window not in backend.forward.sliding_windows:
            why = f"never asked for its sliding window of {window}"
    return why and f"a trial step {why}"
