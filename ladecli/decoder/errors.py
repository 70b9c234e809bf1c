"""The errors of the decoder, whose messages are one line for the user."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors that this package raises on purpose."""


class DecoderError(Error):
    """Base of all errors that the decoder raises."""


class ConfigError(DecoderError, ValueError):
    """A setting outside its range."""


class PromptError(DecoderError, ValueError):
    """A prompt that cannot be decoded: empty, or too long for the context."""


class UnsupportedModelError(DecoderError):
    """A model that cannot be decoded, at all or by the backend that is tried."""


class NaNLogitsError(DecoderError):
    """Logits that are NaN or infinite, so that no token can be chosen."""

    def __init__(self) -> None:
        super().__init__(
            "the logits are NaN or infinite: the weights are damaged, do not fit config.json, or"
            " are too large for their type; download them again, or try --dtype float32"
        )


class RankError(DecoderError):
    """Ranks that decode together lost one another, or disagree; the message names the rank."""


class DeviceLostError(DecoderError):
    """A GPU that met a fault, after which every call fails until the process ends."""


class NoMemoryError(DecoderError):
    """No memory for a forward that cannot be tried again, because other ranks are inside it."""

    def __init__(self) -> None:
        super().__init__(
            "out of memory in a step of all ranks; a smaller --budget or --max-context needs less"
        )
