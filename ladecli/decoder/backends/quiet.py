"""Send warnings of libraries to a log, since they are not faults of a model or of the user."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator

LOG = logging.getLogger("ladecli.libraries")
"""Receives the warnings at level INFO: "FILE:LINE: CATEGORY: MESSAGE"."""
_LOGGERS = [
    logging.getLogger(name)
    for name in ("transformers", "accelerate", "bitsandbytes", "huggingface_hub", "torch")
]
_lock = threading.Lock()
_depth = 0  # of `quiet` blocks, those of other threads included
_restore = contextlib.ExitStack()  # closed when the outermost one ends


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of libraries off the terminal, for any warning filters of the process.

    Their loggers are also limited to errors, unless `LOG` is enabled.
    """
    global _depth
    with _lock:
        if not _depth:
            _restore.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always" if LOG.isEnabledFor(logging.INFO) else "ignore")
            warnings.showwarning = _to_log
        if not LOG.isEnabledFor(logging.INFO):
            _hush()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _restore.close()


def _hush() -> None:
    """Raise the loggers' levels until the outermost block ends; this is repeated in inner blocks,
    since a newly imported library sets its own level."""
    for logger in _LOGGERS:
        if logger.level < logging.ERROR:
            _restore.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)


def _to_log(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    LOG.info("%s:%d: %s: %s", filename, lineno, category.__name__, message)
