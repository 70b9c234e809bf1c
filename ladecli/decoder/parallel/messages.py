"""Messages between ranks: in every step one record, of a fixed size.

The size depends on the widest step and on the successors asked for, not on the model: ranks send
tokens, never logits or keys.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_TOKEN = -1
"""Fills up tokens and successors."""


class Kind(IntEnum):
    """What a message reports."""

    BEGIN = 1  # a generation begins; `numbers` has the tokens cached
    READY = 2  # a forward of all ranks begins
    RESULT = 3  # the step's result
    OUT_OF_MEMORY = 4  # `numbers` has the step's pending tokens, and its other tokens plus one
    STOPPED = 5  # the caller closed the generation on this rank
    FAILED = 6  # an error ended the generation on this rank; its text follows as an object


def message_type(max_outputs: int, max_successors: int) -> np.dtype[Any]:
    """The type of all messages of a generation.

    Args:
        max_outputs: the most outputs of one rank's step.
        max_successors: the most successors of one output.
    """
    each = (max_outputs, max_successors)
    return np.dtype(
        [
            ("kind", np.int32),
            ("checksum", np.uint32),  # of the request or the draft: equal on all ranks
            ("numbers", np.int32, 2),
            ("tokens", np.int32, max_outputs),  # of the accepted path, the bonus token last
            ("best", np.int32, max_outputs),
            ("successors", np.int32, each),
            ("probabilities", np.float32, each),
        ]
    )


def new_message(dtype: np.dtype[Any], kind: Kind) -> NDArray[Any]:
    """A message of this kind, shape [], without tokens."""
    message = np.zeros((), dtype)
    message["kind"] = kind
    message["tokens"] = message["successors"] = NO_TOKEN
    return message
