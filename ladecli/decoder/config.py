"""Settings of the decoder: frozen, checked when they are made, free of torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from .drafting import sources
from .errors import ConfigError
from .step_cost import StepCost, fitting

STRATEGIES = ("lookahead", "autoregressive", "jacobi", "prompt-lookup")
SOURCES = tuple(sources.SOURCES)
"""The names of all sources of drafts."""
WITHOUT_WINDOW = ("context", "recycled")
"""The default of profiles: with these sources, candidates bring more than a window that takes their
place (benchmarks/README.md)."""
MAX_WIDTH = 4096
"""The most tokens of a step, so that a typing error does not start one that takes minutes."""
PREFILL_CHUNK, CPU_CHUNK = 512, 128
"""Prompt tokens in one forward.  On a CPU more are no faster, and Ctrl-C waits for the end."""
GROWTH = 256
"""Slots of the cache are allocated in multiples of this."""
NEARLY_ALL = 0.6
"""If the cache needs more than this share of the slots for the longest text, it allocates all.

While it grows, the old tensors and the new ones exist together, so growing from nearly all slots to
all would take twice the memory.
"""
EXTREME = 1e15
"""Temperatures and repetition penalties from the inverse of this up to this keep logits within the
range of float32, even together."""
CAPTURED_WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""The widths of captured steps; wider ones have a multiple of the last."""


def chunk_on(device: str) -> int:
    """Return how many prompt tokens a kind of device reads in one forward."""
    return CPU_CHUNK if device == "cpu" else PREFILL_CHUNK


def captured_width(tokens: int) -> int:
    """Return the width of the captured step that holds a number of tokens."""
    widest = CAPTURED_WIDTHS[-1]
    return fitting(tokens, CAPTURED_WIDTHS) if tokens <= widest else -(-tokens // widest) * widest


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Settings of lookahead decoding.

    Raises:
        ConfigError: a value is out of range.
    """

    window: int = 7
    """W, columns of the lookahead window."""
    ngram: int = 5
    """N, length of the n-grams; the window has N - 1 rows."""
    guesses: int = 7
    """G, n-grams kept per first token and verified in one step."""
    budget: int | None = None
    """The most tokens in a step, the current one included; None for (W + G)(N - 1), which the
    paper's algorithm cannot exceed."""
    sources: tuple[str, ...] = SOURCES
    """The sources of candidates: `trajectory` is the paper's window, `context` the prompt and the
    accepted text, `recycled` the tokens that the model found probable after those of earlier steps.
    `trajectory` alone is the paper's algorithm."""
    step_cost: StepCost = field(default_factory=StepCost)
    """The cost of a step by its width.  The width of each step is chosen to expect the most tokens
    for its cost.  By default all widths cost the same, so the budget is filled.  The paper's
    algorithm does not use it."""
    widths: tuple[int, ...] = ()
    """The only widths that a step after the prompt may have, ascending, so that each can be
    captured once; other steps are padded.  () for any width.  The budget is rounded down to one of
    them."""

    def __post_init__(self) -> None:
        for name, minimum in (("window", 1), ("ngram", 2), ("guesses", 0), ("budget", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, not {value}")
        if self.widths and (self.widths[0] != 1 or any(a >= b for a, b in pairwise(self.widths))):
            raise ConfigError(f"widths must ascend from 1, the plain step, not {self.widths}")
        known = ", ".join(SOURCES)
        if not self.sources:
            raise ConfigError(f"sources must name at least one of {known}")
        if unknown := [source for source in self.sources if source not in SOURCES]:
            raise ConfigError(f"unknown source {unknown[0]!r}; known sources: {known}")
        if len(set(self.sources)) < len(self.sources):
            raise ConfigError(f"a source is named twice: {', '.join(self.sources)}")
        cells, limit, shape = self.window_cells, self.step_limit, f"W={self.window}, N={self.ngram}"
        if self.budget is not None and self.budget < cells:
            raise ConfigError(
                f"budget {self.budget} is smaller than the {cells} tokens of a window"
                f" with {shape}; raise the budget or lower W or N"
            )
        if limit > MAX_WIDTH:
            raise ConfigError(
                f"a step of {limit:,} tokens is too wide (at most {MAX_WIDTH:,}); lower W, N, G or"
                " the budget"
            )
        if limit < cells:
            raise ConfigError(
                f"the widest step that widths allow has {limit} tokens, and a window with"
                f" {shape} has {cells}; lower W or N"
            )

    @property
    def window_cells(self) -> int:
        """The most cells that the window has, the current token included.

        A narrow window with many rows is largest while it fills: r rows have W + N - 1 - r columns.
        Without the source `trajectory` there is no window, and the current token is left.
        """
        if "trajectory" not in self.sources:
            return 1
        total = self.window + self.ngram - 1  # rows and columns together
        rows = min(total // 2, self.ngram - 1)
        return rows * (total - rows)

    @property
    def step_limit(self) -> int:
        """The most tokens in a step: the budget, rounded down to one of `widths`."""
        return self.limit_within(sys.maxsize)

    def limit_within(self, width: int) -> int:
        """Return the most tokens in a step if memory suffices for `width` tokens."""
        limit = self.budget
        if limit is None:
            limit = self.window_cells + self.guesses * (self.ngram - 1)
        limit = min(limit, width)
        return max((allowed for allowed in self.widths if allowed <= limit), default=limit)


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """The settings by which a token is chosen from logits.

    Raises:
        ConfigError: a value is out of range.
    """

    temperature: float = 0.0
    """0 for the most probable token; otherwise logits are divided by this."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens that together have this probability; in (0, 1]."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the best one's probability; in [0, 1]."""
    repetition_penalty: float = 1.0
    """Divide positive and multiply negative logits of tokens that the text already has (Keskar et
    al., 2019); 1 leaves them alone."""
    seed: int = 0
    """The noise of a position depends only on this and the position."""

    def __post_init__(self) -> None:
        tempered, top_p, penalty = self.temperature, self.top_p, self.repetition_penalty
        least, most, span = 1.0 / EXTREME, EXTREME, f"from {1.0 / EXTREME:g} to {EXTREME:g}"
        for name, value, fits, allowed in (  # a NaN fits nowhere
            ("temperature", tempered, self.greedy or least <= tempered <= most, f"0, or {span}"),
            ("top-k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("top-p", top_p, 0.0 < top_p <= 1.0, "in (0, 1]"),
            ("min-p", self.min_p, 0.0 <= self.min_p <= 1.0, "in [0, 1]"),
            ("repetition-penalty", penalty, least <= penalty <= most, span),
            ("seed", self.seed, -(2**63) <= self.seed < 2**64, "in [-2**63, 2**64)"),
        ):
            if not fits:
                raise ConfigError(f"{name} must be {allowed}, not {value}")

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always chosen."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that end a generation under any strategy.

    Raises:
        ConfigError: `max_new_tokens` is negative.
    """

    max_new_tokens: int | None = None
    """The most tokens; None for as many as the context holds."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the text; the id itself is committed."""
    should_stop: Callable[[int], bool] | None = None
    """Called with every committed token, in order.  If it returns True, the text ends with that
    token, and the tokens after it are dropped."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise ConfigError(f"max-new-tokens must be 0 or more, not {self.max_new_tokens}")
