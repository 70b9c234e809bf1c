"""What captured steps hold beside weights and cache, counted without a GPU.

    python benchmarks/memory.py

Models of the shapes of `scripts/gpu_check` lie on torch's "meta" device, where tensors have a size
and no numbers.  Behind 4,096 tokens their steps run as they are captured, one of each width up to
the budget, the narrowest first, and every storage counts from when it is made until nobody holds
it.  The share of the weights is what `gpu_check` asks of a GPU, which counts by the driver.

Not counted: weights and cache; the chunks of the prompt, which are over by then, and the same in
plain decoding; what libraries and kernels take for themselves (cuBLAS's workspace, sorting within
top-k); what a driver takes for a graph; and what torch's allocator rounds, and leaves unused in the
graphs' pool.  Layers are transformers' own; lean ones hold no more.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ladecli.decoder import layout
from ladecli.decoder.attention import bind, flash, fused
from ladecli.decoder.capture import Work
from ladecli.decoder.config import CAPTURED_WIDTHS, GROWTH, PREFILL_CHUNK, SamplingConfig
from ladecli.decoder.graphs import GraphRunner
from ladecli.decoder.kv_cache import KVCache
from ladecli.decoder.readout import Wanted
from ladecli.decoder.sources.recycled import SUCCESSORS
from ladecli.memory import told

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from gpu_check.shapes import SHAPES, config_of
from gpu_check.steps import Scale, step_of

TEXT = Scale().long
BUDGETS = (64, 128)
META = torch.device("meta")
CHIP = fused.Chip(132, 228 << 10)
"""An H100 or H200: how attention is cut follows from it."""
WHOLE = {"linear", "embedding", "scaled_dot_product_attention"}
"""One kernel each on a GPU, though torch can take them apart."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True)
class Arm:
    """One way to decode.

    Attributes:
        name: for people.
        attention: a backend.
        logits, sampling, penalty: as in `Wanted`.
    """

    name: str
    attention: str = "sdpa"
    logits: bool = False
    sampling: SamplingConfig | None = None
    penalty: float = 1.0


ARMS = (
    Arm("greedy"),
    Arm("greedy", "flash"),
    Arm("greedy", "triton"),
    Arm("temperature", logits=True, sampling=SamplingConfig(0.8)),
    Arm("top-p", logits=True, sampling=SamplingConfig(0.8, top_p=0.9)),
    Arm("penalty", penalty=1.1),
    Arm(
        "penalty, top-p",
        logits=True,
        sampling=SamplingConfig(0.8, top_p=0.9, repetition_penalty=1.1),
        penalty=1.1,
    ),
    Arm("processors", logits=True),
)


class Live(TorchDispatchMode):
    """Counts the bytes that are held of what is made within.

    Args:
        vocabulary: tells logits.

    Attributes:
        now, peak: bytes.
        layers: the peak before there are logits.
        largest: at the peak, bytes and names of the largest tensors.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._logits = False
        self.now = self.peak = self.layers = 0
        self.largest: list[tuple[int, str]] = []
        # By storage: nothing for those that were there before.
        self._held: dict[int, tuple[int, str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = func._schema.name.partition("::")[2]
        # In inference mode they arrive here before they are taken apart.
        if name not in WHOLE and func.has_kernel_for_dispatch_key(_COMPOSITE):
            with self:
                return func.decompose(*args, **given)
        for each in tree_leaves((args, given)):
            self._note(each, name, there=True)
        out = func(*args, **given)
        for each in tree_leaves(out):
            # What is on the host takes nothing from the device.
            self._note(each, name, there=isinstance(each, Tensor) and each.device.type == "cpu")
        return out

    def _note(self, tensor: Any, name: str, *, there: bool) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._held:
            return
        size = 0 if there else storage.nbytes()
        shape = " x ".join(map(str, tensor.shape))
        kind = str(tensor.dtype).removeprefix("torch.")
        self._held[key] = size, f"{name} {shape} {kind}"
        weakref.finalize(storage, self._gone, key)
        self.now += size
        self._logits = self._logits or tensor.shape[-1:] == (self._vocabulary,)
        if not self._logits:
            self.layers = max(self.layers, self.now)
        if self.now > self.peak:
            self.peak = self.now
            self.largest = heapq.nlargest(3, self._held.values())

    def begin(self) -> None:
        """A step begins: there are no logits."""
        self._logits = False

    def _gone(self, key: int) -> None:
        self.now -= self._held.pop(key)[0]


class Counted:
    """Stands for CUDA graphs: work is done once, and counted.

    Args:
        live: counts.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    def capture(self, work: Work) -> Any:
        self._live.begin()
        with self._live:
            return SimpleNamespace(outputs=work())

    def wait(self) -> None:
        """Nothing runs by itself here."""


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Attention takes the ways of a GPU; kernels without numbers do nothing."""
    with (
        mock.patch.multiple(
            flash,
            _kernel=lambda *_: flash._by_torch,
            _processors=lambda *_: CHIP.multiprocessors,
        ),
        mock.patch.multiple(
            fused,
            _kernels=lambda *_: None,
            _chip=lambda *_: CHIP,
            _attend=lambda *_, **__: None,
            _join=lambda *_, **__: None,
        ),
    ):
        yield


def model_of(name: str) -> Any:
    """A model of this shape, without numbers, its attention bound."""
    config = config_of(SHAPES[name], Scale().room)
    with META:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    bind(model.eval().requires_grad_(False))
    return model


def weight_bytes(model: nn.Module) -> int:
    """Of all weights; tied ones count once."""
    return sum(each.numel() * each.element_size() for each in model.parameters())


@torch.inference_mode()
def count(model: Any, arm: Arm, budgets: tuple[int, ...]) -> list[dict[str, Any]]:
    """What is held once all widths up to each budget were captured; budgets ascend.

    Returns:
        For each: bytes at the peak, bytes that stay between steps, the most in a step's layers
        (with what stayed before), slots of the cache, and the largest tensors at the peak.
    """
    live = Live(model.config.vocab_size)
    cache = KVCache(model.config.num_hidden_layers, model.config.max_position_embeddings + GROWTH)
    runner = GraphRunner(model, cache, arm.attention, Counted(live))
    # A model without numbers is otherwise taken for one on the CPU.
    runner.device = META
    runner.forward(layout.build_chunk([0], 0))
    for length in range(PREFILL_CHUNK, TEXT + 1, PREFILL_CHUNK):
        cache.length = max(cache.length, 1)  # something is cached, which it has to keep
        cache.reserve(length)
        cache.length = length
    found, captured = [], 0
    for budget in budgets:
        for width in [each for each in CAPTURED_WIDTHS if captured < each <= budget]:
            uniforms = [0.5] * width if arm.sampling is not None else ()
            asked = SUCCESSORS if width > 1 else 0
            wanted = Wanted(asked, arm.logits, arm.sampling, uniforms, arm.penalty)
            cache.reserve(TEXT + width)
            with live:
                step = runner._step(step_of(width, TEXT, model.config.vocab_size), wanted, width)
            if step is None:
                raise RuntimeError(f"the step was not captured: {runner.trouble}")
        captured = budget
        found.append(
            {
                "budget": budget,
                "peak": live.peak,
                "stays": live.now,
                "layers": live.layers,
                "slots": cache.slots,
                "largest": live.largest,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name in SHAPES if not name.startswith("tiny")]
    parser.add_argument("--models", default=",".join(names))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in args.models.split(","):
        model = model_of(name)
        weights = weight_bytes(model)
        print(f"\n{name}, bfloat16, {told(weights)} of weights, behind {TEXT:,} tokens\n")
        head = ("asked", "attention", "plain", "budget", "peak", "layers", "stays", "more")
        print(f"| {' | '.join((*head, 'largest at the peak'))} |\n{'|---' * (len(head) + 1)}|")
        rows = []
        with as_on_a_gpu():
            for arm in ARMS:
                (plain,) = count(model, arm, (1,))
                for row in count(model, arm, BUDGETS):
                    share = (row["peak"] - plain["peak"]) / weights
                    largest = ", ".join(f"{told(size)} ({what})" for size, what in row["largest"])
                    print(
                        f"| {arm.name} | {arm.attention} | {told(plain['peak'])} | {row['budget']}"
                        f" | {told(row['peak'])} | {told(row['layers'])} | {told(row['stays'])}"
                        f" | {share:.2%} | {largest} |",
                        flush=True,
                    )
                    same = row["slots"] == plain["slots"]
                    arms = {"asked": arm.name, "attention": arm.attention, "plain": plain["peak"]}
                    rows.append(arms | row | {"share": share, "same_cache": same})
        figures[name] = {"weights": weights, "rows": rows}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
