"""The ways that steps can run: with which attention, and whether as CUDA graphs; and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import UsageError
from .option_fields import CONFIG_FILE, config_path

if TYPE_CHECKING:
    from .device import Device
    from .options import Request
    from .session import Session
    from .shape import ModelShape

_NEED_KERNELS = ("flash", "triton")
"""Attention backends that do not work everywhere."""
_SPREAD = "the model lies on several devices"


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention backend, and why it was chosen."""

    name: str
    why: str


def attention_of(request: Request, device: Device, shape: ModelShape) -> Attention:
    """The attention backend that a request comes to for a model on a device."""
    if request.attention != "auto":
        return Attention(request.attention, "as asked for")
    if shape.latent is not None:
        return Attention("sdpa", "keys and values of this model differ in size")
    if device.kind != "cuda":
        return Attention("sdpa", f"the fastest one on {device.label}")
    if not request.kernels:
        return Attention("sdpa", "Triton kernels are switched off")
    from .decoder.attention import choose_backend
    from .device import in_torch

    name = choose_backend("auto", *in_torch(device, shape.compute))
    why = "the split-KV kernel, for half precision" if name == "triton" else "no other works here"
    return Attention(name, why)


def no_graphs(request: Request, device: Device) -> str | None:
    """Why steps are not captured as CUDA graphs, as far as that is known before a model is loaded;
    None where they are."""
    if request.cuda_graphs is False:
        return "switched off"
    if device.kind != "cuda":
        return f"they need a CUDA GPU, and the model runs on {device.label}"
    if request.parallel_mode == "tensor":
        return "the ranks of a model that is split wait for one another within every step"
    return None


def why_no_graphs(request: Request, session: Session) -> str | None:
    """Why the steps of a session are not captured as CUDA graphs; None if they are."""
    if session.decoder.runner.captures:
        return None
    why = no_graphs(request, session.loaded.device)
    return why or _why_not_captured(session) or _SPREAD


def without_graphs(request: Request, session: Session) -> str | None:
    """What to tell a user who asked for CUDA graphs and does not get them, where nothing else
    tells it."""
    if not request.cuda_graphs or session.decoder.runner.captures or _why_not_captured(session):
        return None
    return f"steps run without CUDA graphs, and slower: {_SPREAD}"


def _why_not_captured(session: Session) -> str | None:
    """What the runner's notices say of CUDA graphs; None where they say nothing."""
    lines = (line for line in session.decoder.runner.notices if "CUDA graphs" in line)
    return next((line.partition(": ")[2] for line in lines), None)


def check(request: Request, device: Device, shape: ModelShape) -> None:
    """Refuse an attention backend, or CUDA graphs, that were asked for and that cannot be here.

    Raises:
        UsageError, ConfigError: the message says why.
    """
    why = no_graphs(request, device)
    if request.cuda_graphs and why is not None:
        raise UsageError(f"no CUDA graphs: {why}; leave {_asking(request, 'cuda_graphs')} out")
    if request.compile and why is not None:
        asking = _asking(request, "compile")
        raise UsageError(f"nothing to compile: no CUDA graphs, for {why}; leave {asking} out")
    if request.attention in _NEED_KERNELS:
        from .decoder.attention import check_usable
        from .device import in_torch

        heads = shape.heads, shape.kv_heads, shape.head_size
        check_usable(request.attention, *in_torch(device, shape.compute), *heads)


def _asking(request: Request, option: str) -> str:
    """What asked for an option, as its user knows it."""
    asking = request.origins.get(option, option).removeprefix("flag ")
    if asking == CONFIG_FILE:
        return f"{option.replace('_', '-')} in {config_path()}"
    return asking
