"""A model on this machine: what is known of it, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """A model on this machine.

    Attributes:
        name: as it is given to a command.
        path: of its folder, or None where there is none.
        size_bytes: on disk.
        family: transformers' model type, "" if unknown.
        dtype: of its weights, or how they are quantised; "" if unknown.
        parameters: how many, or None.
        context: the most tokens of a text, or None.
        fits: the first setting that fits this machine: a type, "8bit" or "4bit"; or None.
        needs_bytes: what that setting needs, or the smallest where none fits; None if unknown.
        supported: whether lookahead decodes it; None where that cannot be told.
        tested: whether its family is among those that are tested.
        notes: reasons, and what else to know.
    """

    name: str
    path: str | None
    size_bytes: int
    family: str = ""
    dtype: str = ""
    parameters: int | None = None
    context: int | None = None
    fits: str | None = None
    needs_bytes: int | None = None
    supported: bool | None = None
    tested: bool = False
    notes: tuple[str, ...] = ()
