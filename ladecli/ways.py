"""The ways that steps can run: with which attention, and whether as CUDA graphs; and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import UsageError
from .places import CONFIG_FILE, config_path

if TYPE_CHECKING:
    from .decoder.attention.choice import Choice as Attention
    from .device import Device
    from .session import Session
    from .settings import Request
    from .shape import ModelShape

_NEED_KERNELS = ("flash", "triton")
"""Attention backends that do not work everywhere."""
_SPREAD = "the model lies on several devices"


def attention_of(request: Request, device: Device, shape: ModelShape) -> Attention:
    """The attention backend that a request comes to for a model on a device, and why."""
    from .decoder.attention import choice

    if request.attention != "auto":
        return choice.Choice(request.attention, "as asked for")
    if shape.latent is not None:
        return choice.Choice("sdpa", "keys and values of this model differ in size")
    return choice.choose(
        device.torch_name,
        shape.compute,
        shape.heads,
        shape.kv_heads,
        shape.head_size,
        captured=no_graphs(request, device) is None,
    )


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
    return why or session.decoder.runner.trouble or _SPREAD


def without_graphs(request: Request, session: Session) -> str | None:
    """What to tell a user who asked for CUDA graphs and does not get them, where nothing else
    tells it."""
    runner = session.decoder.runner
    if not request.cuda_graphs or runner.captures or runner.trouble is not None:
        return None
    return f"steps run without CUDA graphs, and slower: {_SPREAD}"


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
        from .decoder.attention.choice import check_usable

        heads = shape.heads, shape.kv_heads, shape.head_size
        check_usable(request.attention, device.torch_name, shape.compute, *heads)


def _asking(request: Request, option: str) -> str:
    """What asked for an option, as its user knows it."""
    asking = request.origins.get(option, option).removeprefix("flag ")
    if asking == CONFIG_FILE:
        return f"{option.replace('_', '-')} in {config_path()}"
    return asking
