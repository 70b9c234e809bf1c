"""A line for torchrun's summary, where that is what people see last."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun looks for what a process died of (torch.distributed.elastic)."""


def leave(message: str) -> None:
    """Leave one line for torchrun's summary, where a torchrun has started this process."""
    name = os.environ.get(VARIABLE)
    if not name or Path(name).exists():  # the first is what it died of
        return
    about = {"py_callstack": message, "timestamp": str(int(time.time()))}
    with contextlib.suppress(OSError):
        Path(name).write_text(json.dumps({"message": {"message": message, "extraInfo": about}}))
