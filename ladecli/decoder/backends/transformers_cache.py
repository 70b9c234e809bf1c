"""Any other decoder-only model, through its own forward and its own cache.

Some models (with a recurrent state, or with attention that accepts no mask) can verify only one
continuation of a text at a time: a step feeds the pending tokens and a chain of drafts.  If a chain
is not accepted as a whole, the cache is reset to its state before the step, and the accepted tokens
are fed again with the next step.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, cache_utils

from ..errors import NaNLogitsError, UnsupportedModelError
from ..faults import is_out_of_memory, reason_of
from ..kv_cache import KVCache, LayerShape, StepCache
from ..model.forward import Drafts, Operations, StepInputs
from ..model.rotary import frequencies_as_loaded, growing
from .attention import step_context
from .compat import cache_argument, returned_cache
from .facts import accepts_multi_token_steps, may_verify_chains
from .transformers_forward import activation_type, input_device
from .trial import TOLERANCE, difference, rounding_type

TRIAL = 10
"""The number of tokens of the text for the trial of a model."""
_LAYERS = {
    cache_utils.DynamicLayer,
    cache_utils.DynamicSlidingWindowLayer,
    cache_utils.LinearAttentionLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
}
"""Layers of transformers' cache that can be copied and restored."""


class OwnCache(KVCache):
    """A model's own cache.

    Args:
        exclusive: True if it has the whole state of a text, so that no other code changes the
            state.

    Attributes:
        held: the cache as the model returned it; None for an empty one.
        text: the tokens in it, with those of the current step.
        saved: `held` before a step with drafts.
    """

    def __init__(self, exclusive: bool = True) -> None:
        super().__init__(())
        self.exclusive = exclusive
        self.held: Any = None
        self.text: list[int] = []
        self.saved: Any = None

    def keep(self, kept: Sequence[int]) -> int:
        """Commit a step that was accepted as a whole; of another step, commit the kept tokens if
        all layers grow with the text, else nothing."""
        start, count = self.length, len(kept)
        if start + count < len(self.text):
            if grows(self.held):
                for layer in self.held.layers:
                    layer.keys = layer.keys[..., : start + count, :]
                    layer.values = layer.values[..., : start + count, :]
                del self.text[start + count :]
            else:
                self.held = self.saved
                del self.text[start if self.saved is not None else 0 :]
        self.saved = None
        self.length = len(self.text)
        return self.length

    def truncate(self, length: int) -> None:
        """Forget all tokens if there are more than `length`, since a state cannot be cut."""
        if length < len(self.text) or not self.exclusive:
            self.held, self.text, self.saved = None, [], None
        super().truncate(len(self.text))

    def release(self) -> None:
        """Forget everything."""
        self.truncate(0)


def grows(held: Any) -> bool:
    """Return True if all layers of a cache hold every token of the text."""
    return type(held) is DynamicCache and {*map(type, held.layers)} == {cache_utils.DynamicLayer}


def copied(held: Any) -> Any:
    """Return a copy of a cache that a model leaves unchanged when it continues with the original:
    attention layers create new tensors, but recurrent ones write to theirs, which are cloned."""
    twin = copy.copy(held)
    twin.layers = [copy.copy(layer) for layer in held.layers]
    for layer in twin.layers:
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                clones = {k: v.clone() if isinstance(v, Tensor) else v for k, v in value.items()}
                setattr(layer, name, clones)
            elif isinstance(value, Tensor) and name not in ("keys", "values"):
                setattr(layer, name, value.clone())
    return twin


class OwnCacheModel:
    """Runs steps through a model's own forward; a `forward.Forward`.

    Raises:
        UnsupportedModelError: its forward fails.
        NaNLogitsError: its weights are damaged.
    """

    operations = Operations("the model's own")

    def __init__(self, model: Any) -> None:
        self.device = input_device(model)
        self.dtype = activation_type(model)
        self.layer_shapes: list[LayerShape] = []
        self.drafts: Drafts = "none"
        self.context = step_context(self.device, foreign=True)
        self._model = model
        self._growing = growing(model)
        self._config = model.config.get_text_config(decoder=True)
        parameters = inspect.signature(model.forward).parameters
        self._selects = "logits_to_keep" in parameters
        self._positions = "position_ids" in parameters
        self._multi_token = self._creates_cache = True
        # RecurrentGemma's state is in its modules, which others use, too.
        self._state = [
            (module, name)
            for module in model.modules()
            for name in vars(module).keys() & {"conv1d_state", "recurrent_states"}
        ]
        self.returns_state = not self._state
        self._name = None
        text = (7 + 37 * torch.arange(TRIAL, device=self.device)) % self._config.vocab_size
        expected = self._expected(text)
        # The first correct mode of reading a text is used: some models create the cache, others
        # require one; some continue a text only by one token at a time, and some not at all.
        self._name = cache_argument(model.forward)
        several = (True, False) if accepts_multi_token_steps(model.config) else (False,)
        modes = itertools.product(several, (True, False))
        for multi_token, creates_cache in modes if self._name else ():
            self._multi_token, self._creates_cache = multi_token, creates_cache
            if self._agrees(self._in_chunks, text, expected):
                chains = multi_token and may_verify_chains(model.config)
                if chains and self._agrees(self._with_drafts, text, expected):
                    self.drafts = "chains"
                return
        self._name = None

    def use(self, operations: Operations) -> None:
        """See `forward.Forward`: there is nothing to choose here."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary], which are its last tokens."""
        assert isinstance(cache, OwnCache)
        rows = len(step.tokens) if step.outputs is None else len(step.outputs)
        together = self._multi_token or not cache.text
        try:
            if rows > 1 and cache.held is not None and not grows(cache.held):
                cache.saved = copied(cache.held)
            for tokens in torch.split(step.tokens, len(step.tokens) if together else 1):
                logits = self._read(tokens, cache, rows)
        except BaseException:
            # The model may have written a part of its state.
            cache.truncate(0)
            raise
        return logits

    def _read(self, tokens: Tensor, cache: OwnCache, rows: int = 1) -> Tensor:
        """Feed tokens after those in a cache; return the last logits, [rows, vocabulary]."""
        if not cache.text:  # else a text that begins with one token would continue an old state
            for module, name in self._state:
                setattr(module, name, None)
        cache.text += tokens.tolist()
        kwargs: dict[str, Any] = {"logits_to_keep": max(rows, 1)} if self._selects else {}
        if self._name is None:  # the whole text once more
            tokens = torch.tensor(cache.text, device=tokens.device)
        else:
            if cache.held is None and not self._creates_cache:
                cache.held = DynamicCache(config=self._config)
            kwargs |= {self._name: cache.held, "use_cache": True}
        if self._positions:  # as `generate` does: some caches do not know a text's length, and some
            end = len(cache.text)  # models count positions differently by default
            positions = torch.arange(end - len(tokens), end, device=tokens.device)
            kwargs["position_ids"] = positions[None]
        with frequencies_as_loaded(self._growing):
            output = self._model(input_ids=tokens[None], **kwargs)
        if self._name is not None:
            cache.held = cache.held if (held := returned_cache(output)) is None else held
        logits: Tensor = output.logits[0]
        return logits[len(logits) - rows :]

    @torch.no_grad()
    def _expected(self, text: Tensor) -> Tensor:
        """Return the logits after a text that is read at once, float32 [1, vocabulary]."""
        try:
            expected = self._read(text, OwnCache()).float()
        except Exception as error:
            if is_out_of_memory(error):
                raise  # not a fault of the family
            raise UnsupportedModelError(
                f"models of the family {self._config.model_type!r} are not supported: a trial step"
                f" of the model's own forward failed: {reason_of(error)}"
            ) from error
        if not bool(expected.isfinite().all()):
            raise NaNLogitsError
        return expected

    @torch.no_grad()
    def _agrees(self, read: Callable[[Tensor], Tensor], text: Tensor, expected: Tensor) -> bool:
        """Return True if a mode of reading a text yields the expected logits."""
        try:
            logits = read(text).float()
        except Exception:
            return False
        dtype = rounding_type(self._model)
        return difference(logits, expected, dtype) <= TOLERANCE[dtype]

    def _in_chunks(self, text: Tensor) -> Tensor:
        cache = OwnCache()
        for chunk in torch.split(text, [4, 4, 1, 1] if self._multi_token else [8, 1, 1]):
            logits = self._read(chunk, cache)
        return logits

    def _with_drafts(self, text: Tensor) -> Tensor:
        """Read a text with drafts after six tokens, none of which is accepted; raise an error if
        the cache cannot be restored."""
        cache = OwnCache()
        self._read(text[:6], cache)
        cache.keep(range(6))
        if type(cache.held) is not DynamicCache or not {*map(type, cache.held.layers)} <= _LAYERS:
            raise TypeError
        cache.saved = copied(cache.held)
        drafts = (text[7:9] + 1) % self._config.vocab_size
        self._read(torch.cat((text[6:7], drafts)), cache, 3)
        start = cache.keep(range(1))
        return self._read(text[start:], cache)
