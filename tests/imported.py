"""What programs of tests begin with, see `forked`: all that an answer and a chat import.

These imports are for their own sake (F401).
"""

from __future__ import annotations

import torch
from transformers.models.llama import modeling_llama  # noqa: F401

from ladecli.decoder import load  # noqa: F401
from ladecli.view import live, markdown  # noqa: F401

torch.set_num_threads(1)
