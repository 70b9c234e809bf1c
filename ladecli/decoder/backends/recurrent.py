"""Recurrent layers of hybrids in steps that hold a tree of drafts.

Such a layer keeps a state instead of keys: the last inputs of a short convolution, and for each
head a matrix that decays with every token, which then adds to it.  In a tree, each node continues
from the state of its parent.  No state of a node is ever computed: as in the chunked form of
prompts, a few products of all nodes with one another yield the output of each node, with the mask
of ancestors in place of the lower triangle.  The same factors yield the state after any node, so
that one product per layer commits an accepted path.

transformers has no hook inside such a layer.  So steps run on a twin of the model, which shares all
weights with it, and whose recurrent layers belong to subclasses that run the functions at the end
of this file.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from ..errors import UnsupportedModelError
from ..faults import attempt
from ..kv_cache import KVCache
from ..layout import dense
from ..model.forward import StepInputs

BLOCK = 64
"""Committed tokens that are read together, since the cost of their products is quadratic."""
SAVED = 6
"""The number of states of a text's start that are kept."""


class LayerState(NamedTuple):
    """The state of a recurrent layer after a text."""

    inputs: Tensor  # the last inputs of its convolution, [kernel - 1, channels]
    matrix: Tensor | None = None  # float32 [heads, keys, values]; None for a mere convolution


States = dict[int, LayerState]
"""States by the index of the layer; empty before the first token."""


class Factors(NamedTuple):
    """The factors from which the state of a layer after each node of a step is computed."""

    keys: Tensor  # [heads, nodes, size]
    values: Tensor  # the values that a node adds under its key, [heads, nodes, size]
    decays: Tensor  # logarithms of the decay of the earlier state at a node, [heads, nodes]

    def after(self, node: int, path: Tensor, matrix: Tensor) -> Tensor:
        """Return the matrix after a node, from the one before the step; `path`, bool [nodes], marks
        the nodes up to this one."""
        decay = self.decays[:, node, None]
        shares = (decay - self.decays).masked_fill(~path, -torch.inf).exp()
        added = (self.keys * shares[..., None]).transpose(1, 2) @ self.values
        return torch.addcmul(added, decay[..., None].exp(), matrix)


class RecurrentStep:
    """A step for recurrent layers: the trunk of committed tokens in sequence, then a tree with the
    current token as its root.

    Attributes:
        start: the number of tokens in the trunk, which the current token follows.
        read: the number of tokens that are read as `generate` reads a prompt.
        borders: states by the number of tokens before them: after the trunk, and at increasing
            distances before its end.
    """

    def __init__(self, step: StepInputs, before: States) -> None:
        self.start = start = step.pending - 1
        self.read = step.pending if start or not before else 0
        self.borders: dict[int, States] = {start: {}}
        while (start := 2 * start - self.start - BLOCK) > 0:
            self.borders[start] = {}
        self._before, self._once = before, step.mask.once
        self._rows = [row >> self.start for row in step.mask.rows[self.start :]]
        self._lines: dict[int, Tensor] = {}
        self._factors: dict[int, Factors] = {}

    def convolve(self, layer: int, inputs: Tensor, conv: nn.Conv1d) -> Tensor:
        """Return the convolution of each token with those before it; both [tokens, channels]."""
        (kernel,), start = conv.kernel_size, self.start
        state = self._before.get(layer)
        first = inputs.new_zeros(kernel - 1, inputs.shape[1]) if state is None else state.inputs
        line = torch.cat((first, inputs))
        tail = self._lines[layer] = line[start:].clone() if start else line
        for border, states in self.borders.items():
            states[layer] = LayerState(line[border : border + kernel - 1].clone())
        seen = tail[self._windows(kernel, tail.device)].float()
        out = (seen * conv.weight[:, 0].T).sum(1).to(tail.dtype)
        if conv.bias is not None:
            out += conv.bias
        if start:
            read = line[: start + kernel - 1].T
            out = torch.cat((F.conv1d(read, conv.weight, conv.bias, groups=len(read)).T, out))
        return out

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        decay: Tensor,
        beta: Tensor | None = None,
    ) -> Tensor:
        """Return the output of each token from its state.

        Args:
            layer: its index.
            query, key, value: float32 [heads, tokens, size].
            decay: logarithms, float32 [heads, tokens].
            beta: the share of the value under its key that a token replaces, [heads, tokens]; None
                if tokens only add.
        """
        state = self._before.get(layer)
        matrix = None if state is None else state.matrix
        if matrix is None:
            matrix = key.new_zeros(len(key), key.shape[2], value.shape[2])
        most = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=key.device).tril()
        parts = [part for part in (query, key, value, decay, beta) if part is not None]
        out, first, end = [], 0, query.shape[1]
        while first < end:
            if first in self.borders:
                states = self.borders[first]
                states[layer] = states[layer]._replace(matrix=matrix)
            left = self.start - first  # the first block is the smaller one
            last = first + (left % BLOCK or BLOCK) if left else end
            block = [part[:, first:last] for part in parts]
            mask = most[: last - first, : last - first] if left else self._ancestors(key.device)
            read, factors = _read_out(mask, matrix, *block)
            if left:
                matrix = factors.after(last - first - 1, mask[-1], matrix)
            else:
                self._factors[layer] = factors
            out.append(read)
            first = last
        return torch.cat(out, 1)

    def after(self, token: int) -> States:
        """Return the states after a token of the tree."""
        node, states = token - self.start, {}
        for layer, (inputs, matrix) in self.borders[self.start].items():
            line = self._lines[layer]
            window = self._windows(len(inputs) + 1, line.device)[node, 1:]
            if matrix is not None:
                path = self._ancestors(line.device)[node]
                matrix = self._factors[layer].after(node, path, matrix)
            states[layer] = LayerState(line[window], matrix)
        return states

    def _ancestors(self, device: torch.device) -> Tensor:
        """Return the ancestors (columns) of each node (row), itself too, bool [nodes, nodes]."""

        def make() -> Tensor:
            return torch.from_numpy(dense(self._rows)).to(device)

        return self._once(("ancestors", device), make)

    def _windows(self, kernel: int, device: torch.device) -> Tensor:
        """Return the indices of the inputs of each node's convolution, [nodes, kernel], among the
        last inputs before the tree and those of the tree."""

        def make() -> Tensor:
            before = kernel - 1
            parents = [(row ^ 1 << i).bit_length() - 1 for i, row in enumerate(self._rows)]
            up = np.array([*range(-1, before - 1), *[before + parent for parent in parents]])
            columns = [np.arange(before, len(up))]
            while len(columns) < kernel:
                columns.append(up[columns[-1]])
            return torch.from_numpy(np.stack(columns[::-1], axis=1)).to(device)

        return self._once(("windows", kernel, device), make)


def _read_out(
    mask: Tensor,
    matrix: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None = None,
) -> tuple[Tensor, Factors]:
    """Return the outputs of tokens from a matrix and from one another, by a mask of ancestors."""
    total = decay @ mask.T.float()
    shares = (total[..., None] - total[:, None]).masked_fill(~mask, -torch.inf).exp()
    left = total.exp()[..., None]
    if beta is not None:
        scaled = key * beta[..., None]
        system = scaled @ key.transpose(1, 2) * shares
        value = value * beta[..., None] - left * (scaled @ matrix)
        value = torch.linalg.solve_triangular(system, value, upper=False, unitriangular=True)
    read = query @ key.transpose(1, 2) * shares @ value
    return torch.addcmul(read, left, query @ matrix), Factors(key, value, total)


class RecurrentCache(KVCache):
    """Keys and values of the attention layers of a hybrid, and the states of the other layers.

    A state cannot be cut, so a few states of the text are kept, for texts with the same beginning:
    after an answer, before the end of its prompt, and at increasing distances before that.

    Attributes:
        states: after the committed tokens.
        step: the last one, from the end of its forward on.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.step: RecurrentStep | None = None
        self.states: States = {}
        self._of = 0  # tokens that `states` are after
        self._saved: dict[int, States] = {}

    def keep(self, kept: Sequence[int]) -> int:
        """See `KVCache`; without memory for the states nothing is kept; the step is fed again."""
        if not kept or self.step is None:
            self.step, self._saved = None, {}  # memory ran out
            return super().keep(kept)
        if (states := attempt(self.step.after, kept[-1])) is None:
            return self.length
        if self.step.start:
            self._save({self.length + at: old for at, old in self.step.borders.items()})
        super().keep(kept)
        self.states, self._of, self.step = states, self.length, None
        return self.length

    def _save(self, states: dict[int, States]) -> None:
        """Keep states by the number of tokens before them, with larger gaps far from the end."""
        self._saved = saved = dict(sorted((self._saved | states).items()))
        while len(saved) > SAVED:
            *places, end = saved
            gaps = {
                place: (after - before) / (end - place)
                for before, place, after in zip(
                    [0, *places], places, [*places[1:], end], strict=False
                )
            }
            del saved[min(gaps, key=gaps.__getitem__)]

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens, or fewer, down to the next kept state."""
        length, self.step = min(length, self.length), None
        if 0 < self._of == self.length:  # else Ctrl-C came between the two
            self._save({self._of: self.states})
        self._saved = {at: states for at, states in self._saved.items() if at <= length}
        self._of = max(self._saved, default=0)
        self.states = self._saved.get(self._of, {})
        super().truncate(self._of)

    def save(self) -> list[Tensor]:
        """See `KVCache`: keys and values, then the position and the parts of each kept state."""
        self.truncate(self.length)  # which keeps the newest
        tensors = super().save()
        for at, states in self._saved.items():
            for layer, state in states.items():
                parts = [part.cpu().clone() for part in state if part is not None]
                tensors += [torch.tensor([at, layer]), *parts]
        return tensors

    def restore(self, saved: Sequence[Tensor], length: int) -> int:
        """See `KVCache`."""
        keys = len(self._rows)
        super().restore(saved[:keys], length)
        self._saved, self._of = {}, -1
        marks = [n for n in range(keys, len(saved)) if saved[n].dtype == torch.int64]
        for mark, end in itertools.pairwise([*marks, len(saved)]):
            (at, layer), device = saved[mark].tolist(), self.tensors[0].device
            state = LayerState(*[part.to(device, copy=True) for part in saved[mark + 1 : end]])
            self._saved.setdefault(at, {})[layer] = state
        self.truncate(length)
        return self.length

    def release(self) -> None:
        """See `KVCache`."""
        self.truncate(0)
        super().release()


def twin_of(model: nn.Module) -> nn.Module:
    """Return a twin of a model that runs steps with trees: it shares all modules except recurrent
    layers and the modules that contain them.  Without such layers, return the model itself."""
    twins: dict[nn.Module, nn.Module] = {}

    def twin(module: nn.Module) -> nn.Module:
        if module in twins:  # some layers are there twice
            return twins[module]
        kind = next(
            (kind for kind in KINDS if all(hasattr(module, name) for name in kind[1])), None
        )
        if kind is not None:
            new = copy.copy(module)
            new.__class__ = type(type(module).__name__, (type(module),), {"forward": kind[0]})
        else:
            parts = {name: part and twin(part) for name, part in module._modules.items()}
            if all(part is module._modules[name] for name, part in parts.items()):
                new = module
            else:
                new = copy.copy(module)
                new._modules = parts
        if new is not module and "forward" in vars(module):  # accelerate's
            raise UnsupportedModelError("its recurrent layers are run by something else")
        return twins.setdefault(module, new)

    return twin(model)


def _heads(part: Tensor, size: int, heads: int) -> Tensor:
    """Return [tokens, groups * size] as float32 [heads, tokens, size]; the heads of a group share
    its part."""
    split = part.view(len(part), -1, size).transpose(0, 1).float()
    return split.repeat_interleave(heads // len(split), 0)


def _step_of(*arguments: object) -> RecurrentStep:
    """Return the current step, which the cache among the arguments of a layer has."""
    step: RecurrentStep = next(arg.recurrent for arg in arguments if hasattr(arg, "recurrent"))
    return step


def _gated_delta_net(self: Any, hidden_states: Tensor, *args: object, **kwargs: object) -> Any:
    """The layer of Qwen3-Next, Qwen3.5 and OLMo Hybrid."""
    step, layer, heads = _step_of(*args, *kwargs.values()), self.layer_idx, self.num_v_heads
    if hasattr(self, "in_proj_qkvz"):
        projected = self.in_proj_qkvz(hidden_states), self.in_proj_ba(hidden_states)
        *mixed, z, b, a = self.fix_query_key_value_ordering(*projected)
    else:
        names = "q_proj k_proj v_proj g_proj b_proj a_proj"
        if not hasattr(self, "q_proj"):
            names = "in_proj_qkv in_proj_z in_proj_b in_proj_a"
        *mixed, z, b, a = (getattr(self, name)(hidden_states) for name in names.split())
    qkv = torch.cat([part.flatten(2) for part in mixed], -1)[0]
    qkv = ACT2FN[self.activation](step.convolve(layer, qkv, self.conv1d))
    query, key, value = qkv.split([self.key_dim, self.key_dim, self.value_dim], -1)
    query, key = (_heads(part, self.head_k_dim, heads) for part in (query, key))
    query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    value = _heads(value, self.head_v_dim, heads)
    decay = -self.A_log.float().exp() * F.softplus(a[0].float() + self.dt_bias)
    beta = b[0].sigmoid().float() * (2 if getattr(self, "allow_neg_eigval", False) else 1)
    query = query * self.head_k_dim**-0.5
    out = step.attend(layer, query, key, value, decay.T, beta.T).transpose(0, 1)
    out = out.to(hidden_states.dtype).reshape(-1, self.head_v_dim)
    norm = getattr(self, "norm", None) or self.o_norm
    project = getattr(self, "out_proj", None) or self.o_proj
    return project(norm(out, z.reshape(out.shape)).view(*hidden_states.shape[:2], -1))


def _mamba2(self: Any, hidden_states: Tensor, *args: object, **kwargs: object) -> Any:
    """The layer of Mamba 2, Granite 4, Falcon-H1, Bamba, Nemotron-H and Zamba 2."""
    step, layer, heads = _step_of(*args, *kwargs.values()), self.layer_idx, self.num_heads
    projected = self.in_proj(hidden_states * getattr(self, "ssm_in_multiplier", 1))
    projected = (projected * getattr(self, "mup_vector", 1))[0]
    inner, groups = self.intermediate_size, self.n_groups * self.ssm_state_size
    gate, mixed, times = projected.split([inner, inner + 2 * groups, heads], -1)
    mixed = self.act(step.convolve(layer, mixed, self.conv1d))
    value, key, query = mixed.split([inner, groups, groups], -1)
    value = _heads(value, self.head_dim, heads)
    key, query = (_heads(part, self.ssm_state_size, heads) for part in (key, query))
    times = F.softplus(times + self.dt_bias).float()
    # `generate` limits only the time steps of a prompt.
    times[: step.read].clamp_(*self.time_step_limit)
    decay = -self.A_log.float().exp() * times
    out = step.attend(layer, query, key, value * times.T[..., None], decay.T)
    out = (out + value * self.D[:, None, None]).transpose(0, 1).flatten(1)
    gated = getattr(self, "mamba_rms_norm", True)
    out = self.norm(out, gate) if gated else out * F.silu(gate)
    return self.out_proj(out.to(hidden_states.dtype))[None]


def _short_convolution(self: Any, hidden_states: Tensor, *args: object, **kwargs: object) -> Any:
    """The layer of LFM2."""
    before, after, value = self.in_proj(hidden_states).chunk(3, -1)
    mixed = (before * value)[0]
    mixed = _step_of(*args, *kwargs.values()).convolve(self.layer_idx, mixed, self.conv)
    return self.out_proj(after * mixed)


KINDS = (
    (_gated_delta_net, ("A_log", "dt_bias", "conv1d", "head_k_dim")),
    (_mamba2, ("A_log", "dt_bias", "conv1d", "D", "n_groups", "in_proj")),
    (_short_convolution, ("conv", "in_proj", "out_proj", "conv_kernel_size")),
)
"""The functions that run recurrent layers with trees, and the attributes that identify the layers.
"""
