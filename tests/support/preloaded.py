"""Imports for the server of `processes`: the modules of an answer and a chat, and one decoded step,
since libraries initialise themselves once in a process (transformers' patterns, torch's scripts).

The imports are not used in this file (F401).
"""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.utils import logging

import ladecli.models.load
from ladecli import chat  # noqa: F401
from ladecli.commands import cli, generate  # noqa: F401
from ladecli.decoder.backends import load
from ladecli.decoder.layout import build
from ladecli.decoder.strategy import Draft
from ladecli.profiles import measured
from ladecli.repl import reader  # noqa: F401
from ladecli.session import session  # noqa: F401
from ladecli.view import live, markdown  # noqa: F401


def decode() -> None:
    """Decode one step of a model without output, so that programs still print their notices."""
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        demo = Path(ladecli.__file__).with_name("demo")
        decoder = load.load_decoder(AutoModelForCausalLM.from_pretrained(demo))
        decoder.executor.run(build([1, 2, 3], 0, Draft()))
    logging.enable_progress_bar()


torch.set_num_threads(1)
decode()
measured.SHARE = 0.0  # as in conftest.py
# After a fork torch creates its thread pool again, and fails if two threads of a load request that
# at the same time.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
gc.freeze()
