"""What the model expects after single tokens, whatever came before them.

A token that is new to a text would be followed by the prior alone.  The model's own successors
after it say more (Stewart et al., "The N-Grammys", 2024); `run.bigrams` asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUCCESSORS = 6
"""Of each token."""


class Bigrams(NamedTuple):
    """The successors of the tokens 0 to n - 1, best first."""

    ids: NDArray[np.int32]
    """[n, `SUCCESSORS`]."""
    shares: NDArray[np.float16]
    """Their probabilities."""

    def after(self, token: int) -> dict[int, float]:
        """The successors of a token with their probabilities; none of one that is not known."""
        if token >= len(self.ids):
            return {}
        return dict(zip(self.ids[token].tolist(), self.shares[token].tolist(), strict=True))
