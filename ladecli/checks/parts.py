"""Optional parts: which are installed, what each would bring, and how to get it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

_QUANTIZE = "pip install 'ladecli[quant]'"


@dataclass(frozen=True, slots=True)
class Part:
    """A package that works with this program and is not required by it.

    Attributes:
        name: of the package.
        brings: what it adds, as the end of "would bring".
        install: the command that gets it.
        names: of other packages that hold the same, on other systems.
        cuda: whether it needs a GPU that torch calls "cuda".
    """

    name: str
    brings: str
    install: str
    names: tuple[str, ...] = ()
    cuda: bool = False

    @property
    def version(self) -> str | None:
        """The version that is installed, or None.  Nothing is imported: that can end in a crash."""
        found = (version(name) for name in (self.name, *self.names))
        return next((v for v in found if v is not None), None)


PARTS = (
    Part(
        "flash-attn",
        "the newest kernels for --attention flash; without it, those in torch are used",
        "pip install 'ladecli[flash]'",
        cuda=True,
    ),
    Part(
        "triton",
        "one fused kernel for a step's attention (--attention triton)",
        "pip install triton",
        names=("triton-windows", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton"),
        cuda=True,
    ),
    Part("bitsandbytes", "--quantize 4bit and 8bit", _QUANTIZE),
    Part("accelerate", "--quantize, --device-map, and loading straight to a GPU", _QUANTIZE),
    Part(
        "gptqmodel", "checkpoints in GPTQ and AWQ", "pip install gptqmodel optimum accelerate", ()
    ),
    Part("torchao", "checkpoints in torchao", "pip install torchao"),
    Part(
        "compressed-tensors",
        "checkpoints in compressed-tensors",
        "pip install compressed-tensors accelerate",
    ),
)

_LOADS = {
    "gptq": ("gptqmodel", "optimum"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "torchao": ("torchao",),
    "fp8": ("accelerate",),
    "nf4": ("bitsandbytes", "accelerate"),
    "fp4": ("bitsandbytes", "accelerate"),
    "int8": ("bitsandbytes", "accelerate"),
}


def version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def missing_for(weights: str) -> list[str]:
    """The packages that are not here and that quantised weights need.

    Args:
        weights: the type or method; unknown ones need nothing that is known.
    """
    return [name for name in _LOADS.get(weights.split(" ")[0], ()) if version(name) is None]
