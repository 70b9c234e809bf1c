"""Whether ranks hold the same weights, told by a few bytes of each."""

from __future__ import annotations

import hashlib
from itertools import chain

import torch
from torch import nn

_SAMPLE = 64
"""Bytes of a parameter that are looked at, about."""


def weights_digest(model: nn.Module) -> str:
    """A digest of a few bytes of each parameter and buffer; equal models have equal ones.

    Args:
        model: of which parts may lie on a disk; those are left out.
    """
    digest = hashlib.sha256()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.numel() and tensor.device.type != "meta":
            plain = tensor.detach().as_subclass(torch.Tensor)
            digest.update(bytes(_sample(plain).tolist()))
    return digest.hexdigest()


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Some bytes from all over a tensor.  Shape [bytes], uint8."""
    while not tensor.is_contiguous():
        tensor = tensor[0]
    whole = tensor.reshape(-1).view(torch.uint8)
    # An odd distance meets every byte of an element, the small ones too.
    return whole[:: (whole.numel() // _SAMPLE) | 1]
