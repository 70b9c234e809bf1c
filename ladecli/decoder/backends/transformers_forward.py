"""Any other family through transformers' own forward and its attention interface.

transformers looks an attention function up by name and passes it any keyword given to
`model.forward`.  So nothing is patched: while a step runs, the model's configurations name our
function, and the step's mask and cache come as keywords.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..errors import UnsupportedModelError
from ..kv_cache import LayerShape, StepCache
from ..model.attention import Attend
from ..model.forward import Drafts, Operations, StepInputs
from ..model.mask import Rules, StepMask
from ..model.rotary import frequencies_as_loaded, growing
from .attention import choose_operations, step_context
from .compat import CACHE_NAMES, GENERATE_CACHE, cache_argument
from .recurrent import RecurrentCache, RecurrentStep, twin_of

NAME = "ladecli"
KEYWORD = "lade_step"
_NAMED = threading.Lock()
"""Held while configurations name our function: models of callers may have several threads."""

# Keywords that change nothing in inference, or that the step replaces.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position"}
    | {"return_dict", "output_hidden_states", "output_router_logits", "layer_idx", "target_dtype"}
    | {"position_embeddings", "logits_to_keep", "deterministic", *CACHE_NAMES}
)


class AttentionCall(NamedTuple):
    """The arguments of a step for attention layers, which add their windows to `windows`."""

    attend: Attend
    mask: StepMask
    windows: set[int]


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    lade_step: AttentionCall | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer in the form that transformers expects.

    Args:
        query: [1, H, T, D].
        key, value: [1, K, S, D], as returned by the cache.
        s_aux: attention sinks, [H].

    Returns:
        [1, T, H, D], and None for the attention weights.

    Raises:
        UnsupportedModelError: the layer needs a feature that no backend has.
    """
    name = type(module).__name__
    if lade_step is None:
        raise UnsupportedModelError(f"{name} does not pass keywords on to its attention")
    for keyword, value_passed in kwargs.items():
        if value_passed is not None and keyword not in _HARMLESS:
            raise UnsupportedModelError(f"{name} needs {keyword!r} in its attention")
    if sliding_window is not None:
        lade_step.windows.add(sliding_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = Rules(scale, sliding_window, softcap, s_aux)
    out = lade_step.attend(query, key, value, lade_step.mask, rules)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention_forward)


class StockModel:
    """Runs steps of a model through its own forward; a `forward.Forward`.

    Args:
        model: a causal language model of transformers; it may lie on several devices.
        shapes: the shapes of keys and values of its layers; see `trial.Trial`.
        attention: name of the attention backend.

    Attributes:
        sliding_windows: those that layers asked for in the last step.
        recurrent: True if some layers are recurrent.
    """

    drafts: Drafts = "trees"

    def __init__(self, model: Any, shapes: Sequence[LayerShape], attention: str = "auto") -> None:
        self.device = input_device(model)
        self.dtype = activation_type(model)
        sizes_differ = any(shape.key_size != shape.value_size for shape in shapes)
        name = "sdpa" if attention == "auto" and sizes_differ else attention
        self.layer_shapes = list(shapes)
        self.sliding_windows: set[int] = set()
        self._spread = len({shape.device for shape in shapes}) > 1
        self._model = twin_of(model)
        self.recurrent = self._model is not model
        self._cache_name = cache_argument(model.forward) or GENERATE_CACHE
        configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None))}
        self._configurations = [
            config for config in configs.values() if hasattr(config, "_attn_implementation")
        ]
        self._growing = growing(model)
        self.context = step_context(self.device, foreign=True)
        self.use(choose_operations(name, self.device, self.dtype))

    def use(self, operations: Operations) -> None:
        """See `forward.Forward`: it takes their attention."""
        self.operations = operations

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; its keys and values are in the cache afterwards.

        Returns:
            Logits of `step.outputs`, [outputs, vocabulary].
        """
        call = AttentionCall(self.operations.attend, step.mask, set())
        rows: Any = 0
        if step.outputs is not None:
            # transformers computes one row at least.  It gets places: of a number of rows, Gemma 4
            # would drop all others before the layers that share keys, and our mask is of all.
            rows = step.outputs if len(step.outputs) else step.outputs.new_zeros(1)
            if self._spread:
                rows = rows.cpu()  # selects on any device: the last layer may be on another
        recurrent = None
        if isinstance(cache, RecurrentCache):
            recurrent = RecurrentStep(step, cache.states)
        elif self.recurrent:
            raise UnsupportedModelError("recurrent layers cannot be captured")
        seen = ModelCache(cache, step.length, recurrent)
        with self._named(), frequencies_as_loaded(self._growing):
            result = self._model(
                input_ids=step.tokens[None],
                attention_mask=None,
                position_ids=step.positions[None],
                use_cache=True,
                logits_to_keep=rows,
                **{self._cache_name: seen, KEYWORD: call},
            )
        if isinstance(cache, RecurrentCache):
            cache.step = recurrent
        self.sliding_windows = call.windows
        logits: Tensor = result.logits[0]
        # Some wrappers pass `logits_to_keep` to nothing, and compute every row.
        return logits[rows] if step.outputs is not None and len(logits) > len(rows) else logits

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have the model's configurations name our function."""
        with _NAMED:
            before = [(config, config._attn_implementation) for config in self._configurations]
            try:
                for config, _ in before:
                    config._attn_implementation = NAME
                yield
            finally:
                for config, name in before:
                    config._attn_implementation = name


class ModelCache:
    """A cache of `length` tokens as transformers' models see it; masks and positions are ours.

    Attributes:
        recurrent: the step as recurrent layers see it; None without such layers.
    """

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(
        self, cache: StepCache, length: int, recurrent: RecurrentStep | None = None
    ) -> None:
        self._cache, self.recurrent = cache, recurrent
        self._length = length

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's step, [1, K, T, D]; return all slots to attend to, [1, K, S, D]."""
        keys, values = self._cache.write(layer_idx, key[0], value[0])
        return keys[None], values[None]

    @property
    def is_initialized(self) -> bool:
        """True if any token is committed."""
        return self._length > 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self._length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Committed tokens."""
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Length and offset of the keys that a step of `query_length` tokens sees."""
        return self._length + query_length, 0


def activation_type(model: Any) -> torch.dtype:
    """Return the type of a model's activations; float32 if all of its weights are integers."""
    types = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    return next(types, torch.float32)


def input_device(model: nn.Module) -> torch.device:
    """Return the device of a model's input; accelerate keeps other weights on "meta"."""
    for parameter in model.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    for module in model.modules():
        # The hook's own attribute: accelerate need not be installed.
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")
