"""What a step takes on several GPUs: the roofline of one, and what they say to one another.

In lookahead parallelism every GPU holds the model and computes a share of the step's drafts; they
exchange a few numbers, whatever the model's size.  In tensor parallelism every GPU holds a part
of every layer, and they add up their results twice in each; such steps are no CUDA graphs, as all
others are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .. import memory, split
from ..decoder.drafting.ngram_model import MAX_SUCCESSORS as SUCCESSORS
from ..decoder.parallel.messages import MessageFormat
from ..profiles.derive import HOST, Rates, step_seconds
from ..shape import FULL, ModelShape
from .growth import Growth
from .links import Fabric

LOOKAHEAD, TENSOR, PLAIN = "lookahead", "tensor", "tensor-plain"
MODES = (LOOKAHEAD, TENSOR, PLAIN)
"""Drafts shared out; the model split; the model split, and one token per step."""
NUMBER = 4
"""Bytes of a number that ranks tell one another."""
SUMS = 2
"""Times in a layer that tensor parallelism adds up: behind attention, and behind its products."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is planned for.

    Attributes:
        shape: of the model.
        rates: of one GPU.
        memory: bytes of one GPU; None where nobody knows.
        budget: tokens in a step of each GPU.
        context: tokens of text before a step.
        fabric: what joins the GPUs.
        growth: tokens per step by ranks and width.
    """

    shape: ModelShape
    rates: Rates
    memory: float | None
    budget: int
    context: int
    fabric: Fabric
    growth: Growth

    @property
    def plain_seconds(self) -> float:
        """What a plain step takes on one GPU."""
        return step_seconds(self.rates, self.shape, 1, self.context, captured=True)

    @property
    def room(self) -> float:
        """Bytes of one GPU that decoding may take."""
        return math.inf if self.memory is None else memory.usable(self.memory)


@dataclass(frozen=True, slots=True)
class Step:
    """A step in one mode on some GPUs.

    Attributes:
        tokens: that it yields.
        computing: seconds in which each GPU computes its share.
        drafting: seconds beyond those of one rank in which the host drafts for the others.
        talking: seconds of exchanges.
        sent: bytes that each GPU gives to exchanges.
        needed: bytes of memory on each GPU.
    """

    tokens: float
    computing: float
    drafting: float
    talking: float
    sent: float
    needed: float

    @property
    def seconds(self) -> float:
        """What it takes."""
        return self.computing + self.drafting + self.talking

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def step(setup: Setup, mode: str, gpus: int) -> Step:
    """A step in a mode on some GPUs, whether or not the model fits and can be split.

    Where drafts do not pay, the decoder makes plain steps.
    """
    if mode == PLAIN:
        return _tensor(setup, gpus, 1, 1)
    if mode == LOOKAHEAD:
        wide, plain = (_lookahead(setup, gpus, width) for width in (setup.budget, 1))
    else:
        wide, plain = (_tensor(setup, gpus, width, setup.budget) for width in (setup.budget, 1))
    # Room for the wide ones must be there all the same.
    return wide if wide.speed >= plain.speed else replace(plain, needed=wide.needed)


def exchanged(width: int) -> int:
    """Bytes that a rank tells the others after a step; the model's size does not matter.

    Its length is that of all messages of a generation, by the most outputs that a step can have.
    """
    if width == 1:
        return NUMBER * MessageFormat(1, 0).length  # plain decoding remembers no successors
    return NUMBER * MessageFormat(width + 1, SUCCESSORS).length


def sums(shape: ModelShape) -> int:
    """How often the ranks of a model that is split add up what each of them has, in a step."""
    return SUMS * shape.layers + 1  # of the embeddings, too, each rank has a part


def uneven(shape: ModelShape, gpus: int) -> str | None:
    """Why a model cannot be split over so many GPUs, in words; None where it can."""
    if gpus > 1 and shape.weights not in FULL:
        return f"weights in {shape.weights} cannot be split"
    heads = split.uneven_heads(shape, gpus)
    return None if heads is None else f"{heads} cannot be split over {gpus} GPUs"


def _agree(setup: Setup, widest: int, gpus: int) -> tuple[float, float]:
    """Bytes and seconds of the exchange that ends every step of several ranks.

    Messages are as long as the widest step of a generation needs them.
    """
    if gpus == 1:
        return 0.0, 0.0
    sent = float(exchanged(widest))
    return sent, setup.fabric.gather(sent, gpus) + setup.fabric.staging


def _lookahead(setup: Setup, gpus: int, width: int) -> Step:
    sent, talking = _agree(setup, setup.budget, gpus)
    # Ranks that lack the winner's keys feed its tokens again, in places of the same width.
    return Step(
        setup.growth.tokens(gpus, width),
        step_seconds(setup.rates, setup.shape, width, setup.context, captured=True),
        # Every rank grows the whole tree, and computes its own share of it.
        HOST * width * (gpus - 1) if width > 1 else 0.0,
        talking,
        sent,
        memory.estimate(setup.shape, context=setup.context, width=width).total,
    )


def _tensor(setup: Setup, gpus: int, width: int, widest: int) -> Step:
    own = split.evenly(setup.shape, gpus)
    states = width * setup.shape.hidden * setup.shape.value_bytes
    logits = width * setup.shape.vocabulary * setup.shape.value_bytes / gpus
    count = sums(setup.shape) if gpus > 1 else 0
    sent, talking = _agree(setup, widest, gpus)
    talking += count * setup.fabric.reduce(states, gpus) + setup.fabric.gather(logits, gpus)
    return Step(
        setup.growth.tokens(1, width),
        step_seconds(setup.rates, own, width, setup.context, captured=gpus == 1),
        0.0,
        talking,
        sent + count * states + (logits if gpus > 1 else 0.0),
        memory.estimate(own, context=setup.context, width=width).total,
    )
