"""Warnings of libraries go to a log: they are no fault of a model, and no user can mend them."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator

LOG = logging.getLogger("ladecli.libraries")
"""Gets them at level INFO: "FILE:LINE: CATEGORY: MESSAGE"."""
_LOGGERS = [
    logging.getLogger(name)
    for name in ("transformers", "accelerate", "bitsandbytes", "huggingface_hub", "torch")
]
_lock = threading.Lock()
_depth = 0  # of `quiet` blocks, those of other threads included
_restore = contextlib.ExitStack()  # closed when the outermost one ends


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries warn of out of the terminal, whatever the filters of the process are.

    Their loggers are hushed as well, but for errors, unless `LOG` is listened to.
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
    """Raise the loggers' levels until the outermost block ends; a library that was imported since
    that began has set its own again."""
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
