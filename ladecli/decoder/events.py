"""What `Decoder.generate` yields: frozen values of ids, origins and seconds; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context"]


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token.

    Attributes:
        id: the token id.
        source: the draft source whose guess was accepted ("trajectory", "context", …), or
            None for a token that the model chose at the end of a step.
    """

    id: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """A chunk of the prompt went into the cache; `done` of `total` tokens are in it now.

    The last chunk is part of the first step and has no event of its own.
    """

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass and the tokens that it yielded.

    Attributes:
        tokens: at least one; accepted draft tokens first.
        width: tokens fed to the model.
        proposed: draft tokens among them that stood for verification.
        seconds: wall time of the step, drafting and verification included.
    """

    tokens: tuple[Token, ...]
    width: int
    proposed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: an end token, the caller's stop, the length asked for, or a full context."""

    reason: FinishReason


Event: TypeAlias = Prefill | Step | Finished
