"""The operations between a layer's products by Triton kernels; importing this needs triton.

Fused are residual add + RMSNorm, QK-norm + RoPE + cache write, and the gated MLP's activation.
Numbers are computed in float32 and rounded where transformers rounds them, so that half precision
differs by the order of a sum at most.  Ask `triton_available` first.  What the kernels do not
cover is left to `TorchOps`: layers without a norm or without positions, norms over all heads at
once, and queries that grow with their position.
"""

# Triton's language has no types in Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_cache import StepCache
from ..model.layer import Layer, Norm, TorchOps, norm_heads
from ..model.rotary import Rotary
from .triton_attention import early, power_of_two
from .triton_attention_kernel import begin_early


@triton.jit
def _rounded(x, TYPE: tl.constexpr):
    """Float32 numbers as a tensor of a type would hold them."""
    return x.to(TYPE).to(tl.float32)


@triton.jit
def _scaled(x, root, weight, FLOAT_WEIGHT: tl.constexpr, TYPE: tl.constexpr):
    """`x * root * weight`; what meets the weight is rounded first unless FLOAT_WEIGHT."""
    x *= root
    if not FLOAT_WEIGHT:
        x = _rounded(x, TYPE)
    return _rounded(x * weight, TYPE)


@triton.jit
def norm_kernel(
    x, update, weight, out, x_row, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, FLOAT_WEIGHT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One row: if ADD, `x += update`; then `out`, the norm of `x`.  The grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < WIDTH
    TYPE: tl.constexpr = out.dtype.element_ty
    scale = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    begin_early(EARLY)
    value = tl.load(x + row * x_row + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(update + row * WIDTH + place, mask=inside, other=0.0)
        value = _rounded(value + more.to(tl.float32), TYPE)
        tl.store(x + row * x_row + place, value.to(TYPE), mask=inside)
    root = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    value = _scaled(value, root, scale, FLOAT_WEIGHT, TYPE)
    tl.store(out + row * WIDTH + place, value.to(TYPE), mask=inside)


# The start differs from step to step, and so does the address of one that lies on the device.
@triton.jit(do_not_specialize=["start", "angle_token"])
def rope_kernel(
    qkv, cos, sin, q_norm, k_norm, query, keys, values, start,
    qkv_token, angle_token, cache_head, cache_slot, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, ROTARY: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, FLOAT_WEIGHT: tl.constexpr, ON_DEVICE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """BLOCK_H heads of one token, queries before keys before values; the grid is (T, blocks)."""
    begin_early(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    place = tl.arange(0, BLOCK_D)[None, :]
    inside, turned = place < SIZE, place < ROTARY
    is_query = inside & (head < HEADS)
    is_key = inside & (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = inside & (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    if INTERLEAVED:
        partner = place ^ 1
    else:
        partner = tl.where(place < ROTARY // 2, place + ROTARY // 2, place - ROTARY // 2)
    at = qkv + token * qkv_token + head * SIZE
    TYPE: tl.constexpr = query.dtype.element_ty
    number = tl.load(at + place, mask=is_query | is_key | is_value, other=0.0)
    x = number.to(tl.float32)
    other = tl.load(at + partner, mask=turned & (is_query | is_key), other=0.0).to(tl.float32)
    if NORMED:
        root = tl.rsqrt(tl.sum(x * x, 1)[:, None] / SIZE + eps)
        scale = tl.load(q_norm + place, mask=is_query, other=0.0).to(tl.float32)
        scale += tl.load(k_norm + place, mask=is_key, other=0.0).to(tl.float32)
        x = _scaled(x, root, scale, FLOAT_WEIGHT, TYPE)
        scale = tl.load(q_norm + partner, mask=turned & is_query, other=0.0).to(tl.float32)
        scale += tl.load(k_norm + partner, mask=turned & is_key, other=0.0).to(tl.float32)
        other = _scaled(other, root, scale, FLOAT_WEIGHT, TYPE)
    cosine = tl.load(cos + token * angle_token + place, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(sin + token * angle_token + place, mask=turned, other=0.0).to(tl.float32)
    result = (x * cosine + other * sine).to(TYPE)
    tl.store(query + (token * HEADS + head) * SIZE + place, result, mask=is_query)
    slot = token + (tl.load(start) if ON_DEVICE else start)
    kv_head = (head - HEADS).to(tl.int64)
    tl.store(keys + kv_head * cache_head + slot * cache_slot + place, result, mask=is_key)
    kv_head -= KV_HEADS
    tl.store(values + kv_head * cache_head + slot * cache_slot + place, number, mask=is_value)


@triton.jit
def gate_kernel(
    both, out, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """`act(gate) * up` of one block of one token; the grid is (T, blocks)."""
    begin_early(EARLY)
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < WIDTH
    TYPE: tl.constexpr = out.dtype.element_ty
    gate = tl.load(both + token * row + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + token * row + WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    inner = gate
    if GELU:
        # (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)); the factor is 2 sqrt(2 / pi).
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    # Beyond 80 the result is 0 either way, and the exponential infinite.
    result = _rounded(gate / (1.0 + tl.exp(tl.minimum(-inner, 80.0))), TYPE) * up
    tl.store(out + token * WIDTH + place, result.to(TYPE), mask=inside)


class TritonOps(TorchOps):
    """The operations of `TorchOps` in fewer kernels."""

    def rms_norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """See `TorchOps`; rows of any stride, a dense result."""
        if norm is None:
            return x
        return _norm(x.reshape(-1, x.shape[-1]), None, norm).view(x.shape)

    def add_rms_norm(self, residual: Tensor, update: Tensor, norm: Norm | None) -> Tensor:
        """See `TorchOps`."""
        if norm is None:
            return super().add_rms_norm(residual, update, norm)
        return _norm(residual, update.contiguous(), norm)

    def rope_and_write(
        self, qkv: Tensor, layer: Layer, rotary: Rotary | None, cache: StepCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `TorchOps`."""
        if rotary is None:
            return super().rope_and_write(qkv, layer, rotary, cache)
        cos, sin, (queries, kv_heads, size) = rotary.cos, rotary.sin, layer.heads
        q_norm, k_norm = layer.norms.query, layer.norms.key
        if q_norm is not None and q_norm.weight.numel() != size:
            qkv, q_norm = norm_heads(qkv, layer.heads, layer.norms), None
        keys, values, start, end = cache.target(layer.index, len(qkv))
        query = qkv.new_empty((len(qkv), queries, size))
        weights, eps, in_float = (qkv, qkv), 0.0, False
        if q_norm is not None and k_norm is not None:
            weights, eps = (q_norm.weight, k_norm.weight), q_norm.eps
            in_float = weights[0].dtype != qkv.dtype
        strides = qkv.stride(0), cos.stride(0), *keys.stride()[:2]
        sizes = {"HEADS": queries, "KV_HEADS": kv_heads, "SIZE": size}
        sizes |= {"ROTARY": cos.shape[-1], "BLOCK_H": 4, "BLOCK_D": power_of_two(size)}
        flags = {"NORMED": q_norm is not None, "FLOAT_WEIGHT": in_float}
        flags |= {"INTERLEAVED": rotary.interleaved, "ON_DEVICE": isinstance(start, Tensor)}
        flags |= early(qkv.device)
        tensors = qkv, cos, sin, *weights, query, keys, values, start
        grid = len(qkv), -(-(queries + 2 * kv_heads) // 4)
        with torch.cuda.device(qkv.get_device()):
            rope_kernel[grid](*tensors, *strides, eps, **sizes, **flags, enable_fp_fusion=False)
        if rotary.query_scale is not None:
            query = query * rotary.query_scale
        return query.transpose(0, 1), keys[:, :end], values[:, :end]

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        """See `TorchOps`."""
        count, width = len(gate_up), gate_up.shape[1] // 2
        out, block = gate_up.new_empty((count, width)), min(1024, power_of_two(width))
        flags = {"GELU": activation == "gelu_tanh", "enable_fp_fusion": False}
        flags |= early(gate_up.device)
        with torch.cuda.device(gate_up.get_device()):
            gate_kernel[count, -(-width // block)](
                gate_up, out, gate_up.stride(0), WIDTH=width, BLOCK=block, **flags
            )
        return out


def _norm(x: Tensor, update: Tensor | None, norm: Norm) -> Tensor:
    """Return the norm of [T, n], to which `update` is added first, in place."""
    count, width = x.shape
    out, block = x.new_empty((count, width)), power_of_two(width)
    sizes = {"WIDTH": width, "BLOCK": block, "num_warps": min(16, max(1, block // 256))}
    flags = {"ADD": update is not None, "FLOAT_WEIGHT": norm.weight.dtype != x.dtype}
    flags |= early(x.device)
    tensors = x, x if update is None else update, norm.weight, out
    with torch.cuda.device(x.get_device()):
        norm_kernel[count,](
            *tensors, x.stride(0), norm.eps, **sizes, **flags, enable_fp_fusion=False
        )
    return out
