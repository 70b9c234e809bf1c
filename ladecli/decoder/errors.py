"""What the decoder refuses, each error with one line for people."""

from __future__ import annotations


class DecoderError(Exception):
    """Base of all errors that the decoder raises on purpose."""


class ConfigError(DecoderError, ValueError):
    """A setting outside its range."""


class PromptError(DecoderError, ValueError):
    """A prompt that cannot be decoded: empty, or too long for the context."""


class UnsupportedModelError(DecoderError):
    """A model whose attention cannot verify several drafts in one forward pass."""


class NoNumbersError(DecoderError):
    """A model whose logits are not finite: nothing can be chosen by them."""


class DraftStateError(DecoderError, ValueError):
    """Saved drafts that are not what they should be."""


class RankError(DecoderError):
    """Ranks that decode together lost one another, or disagree; the message names the rank."""


class DeviceLostError(DecoderError):
    """A GPU that has met a fault, and answers nothing but errors until the process ends."""


class NoMemoryError(DecoderError):
    """No memory for a forward that cannot be tried again: other ranks are in the middle of it."""
