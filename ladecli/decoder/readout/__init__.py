"""What is read out of a step's logits, for all of its rows at once and without waiting.

- `packing`   what is wanted, and all of it in one tensor, so that one copy brings it home
- `ranking`   the most probable tokens
- `choosing`  tokens drawn by temperature, top-k, top-p and min-p
- `penalty`   the repetition penalty, which is another one for every row
- `quick`     the same by Triton's `kernels`, where a trial shows that they say the same;
  `quick_draw` and its `draw_kernel` likewise
"""

from .packing import Readout, Rows, Shown, Wanted, pack

__all__ = ["Readout", "Rows", "Shown", "Wanted", "pack"]
