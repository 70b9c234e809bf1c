"""Any other decoder-only model, one token at a time, through its own forward and its own cache.

What keeps several continuations of a text from being verified in one pass (a recurrent state, keys
that are dropped by their content, attention that takes no mask from outside) does not keep a text
from being decoded.  A step feeds the tokens that the cache lacks, and no drafts.
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from .errors import NaNLogitsError, UnsupportedModelError
from .families import continues
from .kv_cache import KVCache, LayerShape
from .memory import is_out_of_memory
from .runner import StepCache, StepInputs, reason_of
from .stock_model import input_device
from .trial import TOLERANCE, difference, rounding_type

CACHES = ("past_key_values", "cache_params", "state")
"""What models call the cache that they take and return."""
TRIAL = 10
"""Tokens of the text that tells how a model continues one."""


class OwnCache(KVCache):
    """A model's own cache: what it holds of a text cannot be taken apart, so it is all or nothing.

    Attributes:
        held: the cache as the model returned it; None for an empty one.
        text: the tokens in it, those of the step under way included.
    """

    def __init__(self) -> None:
        super().__init__(())
        self.held: Any = None
        self.text: list[int] = []

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: that is, all where there are more."""
        if length < len(self.text):
            self.held, self.text = None, []
        super().truncate(len(self.text))

    def release(self) -> None:
        """Forget everything."""
        self.truncate(0)


class PlainModel:
    """Runs steps of a model as it is; a `runner.Forward` that verifies no drafts.

    Raises:
        UnsupportedModelError: its forward fails.
        NaNLogitsError: its weights are damaged.
    """

    attention = "the model's own"
    keeps_weights = True
    kernels = False
    verifies_drafts = False

    def __init__(self, model: Any) -> None:
        self.device = input_device(model)
        self.dtype: torch.dtype = model.dtype
        self.layer_shapes: list[LayerShape] = []
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        known = inspect.signature(model.forward).parameters
        self._options: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._at_once = self._makes_cache = True
        self._name = None
        text = (7 + 37 * torch.arange(TRIAL, device=self.device)) % self._config.vocab_size
        expected = self._expected(text)
        # The first way to read a text that is right: some models make the cache, others take one;
        # some continue a text by one token at a time only, and some not at all.
        self._name = next((name for name in CACHES if name in known), None)
        several = (True, False) if continues(model.config) else (False,)
        ways = itertools.product(several, (True, False))
        for at_once, makes_cache in ways if self._name else ():
            self._at_once, self._makes_cache = at_once, makes_cache
            if self._reads_in_parts(text, expected):
                return
        self._name = None

    def use(self, attention: str, ops: Any = None) -> None:
        """See `runner.Forward`: there is nothing to choose here."""

    def forward(self, step: StepInputs, cache: StepCache) -> Tensor:
        """Run one step; logits of its outputs, [outputs, vocabulary].

        Only the last token can be an output.
        """
        assert isinstance(cache, OwnCache)
        together = self._at_once or not cache.text
        try:
            for tokens in torch.split(step.tokens, len(step.tokens) if together else 1):
                logits = self._read(tokens, cache)
        except BaseException:
            # What the model has written until then is of no use.
            cache.truncate(0)
            raise
        return logits if step.outputs is None or len(step.outputs) else logits[:0]

    def _read(self, tokens: Tensor, cache: OwnCache) -> Tensor:
        """Feed tokens after those in a cache; the last one's logits, [1, vocabulary]."""
        cache.text += tokens.tolist()
        given = self._options.copy()
        if self._name is None:  # the whole text once more
            tokens = torch.tensor(cache.text, device=tokens.device)
        else:
            if cache.held is None and not self._makes_cache:
                cache.held = DynamicCache(config=self._config)
            given |= {self._name: cache.held, "use_cache": True}
        if self._name == CACHES[0]:
            given["attention_mask"] = tokens.new_ones((1, len(cache.text)))
        found = self._model(input_ids=tokens[None], **given)
        if self._name is not None:
            cache.held = getattr(found, self._name, cache.held)
        logits: Tensor = found.logits[0, -1:]
        return logits

    @torch.inference_mode()
    def _expected(self, text: Tensor) -> Tensor:
        """Logits after a text that is read at once, float32 [1, vocabulary]."""
        try:
            expected = self._read(text, OwnCache()).float()
        except Exception as error:
            if is_out_of_memory(error):
                raise  # that says nothing about the family
            raise UnsupportedModelError(
                f"models of the family {self._config.model_type!r} are not supported: a trial step"
                f" of the model's own forward failed: {reason_of(error)}"
            ) from error
        if not bool(expected.isfinite().all()):
            raise NaNLogitsError
        return expected

    @torch.inference_mode()
    def _reads_in_parts(self, text: Tensor, expected: Tensor) -> bool:
        """Whether a text that is read in parts gives the logits of the whole."""
        cache = OwnCache()
        try:
            for part in torch.split(text, [4, 4, 1, 1] if self._at_once else [8, 1, 1]):
                found = self._read(part, cache).float()
        except Exception:
            return False
        dtype = rounding_type(self._model)
        return difference(found, expected, dtype) <= TOLERANCE[dtype]
