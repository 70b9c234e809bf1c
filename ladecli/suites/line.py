"""A line of a prompt file, checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _named(value: object) -> object:
    """Numbers are names, too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(_not_blank)]
Name = Annotated[str, BeforeValidator(_named)]


class Line(BaseModel):
    """One conversation: a prompt, or turns.  `prompt` comes first where both are there."""

    id: Name | None = None
    category: Name | None = None
    prompt: Text | None = None
    turns: Annotated[list[Text], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Line:
        if self.prompt is None and self.turns is None:
            raise ValueError("needs 'prompt' or 'turns'")
        return self


def parse(line: str) -> Line:
    """The row in a line of JSON.

    Raises:
        ValueError: it is no JSON, or an invalid row.
    """
    return Line.model_validate_json(line)


def invalid(error: ValueError) -> str:
    """What is wrong with a line, in a few words: "turns, 2: it is empty"."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    # Places in lists are counted from 1 on.
    keys = [str(key + 1) if isinstance(key, int) else key for key in first["loc"]]
    message = first["msg"].removeprefix("Value error, ")
    return f"{', '.join(keys)}: {message}" if keys else message
