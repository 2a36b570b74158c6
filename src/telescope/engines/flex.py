"""torch's FlexAttention: a definition compiled into one kernel, with whatever mask, bias, softcap and sink it has."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

from ..attention import Attention, Mask, Pairs, everyone, softmax
from ..attention.values import has_numbers, identity, moved, tensors
from .torch_modes import exporting

TILE = 128  # queries and keys of a block, FlexAttention's own default
NARROWEST = 16  # features; a smaller product does not fit a tensor core
DEFINITIONS = 256  # that one process compiles; torch would stop at 8, and form the n x n weights from there on
MASKS = 16  # that are remembered

_remembered: dict[Any, tuple[Mask, BlockMask]] = {}


def _lacking(device: str) -> str | None:
    """What has to be there before FlexAttention runs on such a device."""
    compiler = os.environ.get("CXX", "g++")
    if device == "cuda":
        return None if find_spec("triton") else "it needs triton, pip install triton"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "on a CPU it needs AVX2"
    return None if shutil.which(compiler) else f"on a CPU it needs the C++ compiler {compiler}"


LACKING = {device: _lacking(device) for device in ("cuda", "cpu")}  # asked once, not while torch.compile traces


def cannot(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0) -> str | None:
    """Why this engine cannot run it, or None."""
    if not attention.score.is_dot_product:
        return f"the score {attention.score.formula} is no dot product"
    if attention.normalize is not softmax:
        return f"it normalises by softmax, not by {getattr(attention.normalize, '__name__', attention.normalize)}"
    if dropout > 0.0:
        return "it has no dropout"
    if queries.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it has no {str(queries.dtype).removeprefix('torch.')}"
    if 0 in (*queries.shape, *keys.shape, values.shape[-1]):
        return "there is nothing to compute"
    if queries.device.type not in LACKING:
        return f"it does not know {queries.device.type} devices"
    if not torch.compiler.is_compiling() and not has_numbers(queries):
        return "without numbers it has nothing to compile for"
    if exporting():
        return "torch.export cannot hold a kernel that is compiled for one size"
    elsewhere = next((tensor.device for tensor in tensors(attention) if tensor.device != queries.device), None)
    if elsewhere is not None and torch.compiler.is_compiling():
        return f"inside torch.compile it cannot move what is on {elsewhere}; attention.to({str(queries.device)!r}) can"
    if LACKING[queries.device.type] or queries.device.type == "cuda":
        return LACKING[queries.device.type]
    inputs = (queries, keys, values, *tensors(attention))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return "on a CPU it has no gradients"
    return None if attention.sink is None else "a sink needs the log-sum-exp, which it does not give on a CPU"


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads query d_v"]:
    if attention.sink is None:
        context: Tensor = _kernel(queries, keys, values, attention)
        return context
    context, told = _kernel(queries, keys, values, attention, AuxRequest(lse=True))
    sink = torch.as_tensor(attention.sink, dtype=told.lse.dtype, device=queries.device).reshape(-1, 1)
    left = torch.sigmoid(told.lse - sink)  # e^lse / (e^lse + e^sink): the sink takes its part of the weight
    return (context * left.unsqueeze(-1)).to(context.dtype)


def lse(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention,
) -> Float[Tensor, "batch heads query"]:
    """The logarithm of each query's sum of exponentials, without the sink, as the kernel tells it."""
    _, told = _kernel(queries, keys, values, attention, AuxRequest(lse=True))
    sums: Tensor = told.lse
    return sums


def _kernel(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, asked: AuxRequest | None = None
) -> Any:
    """The context, and beside it what is asked for."""
    here: Attention = moved(attention, queries.device)
    d_v, scale = values.shape[-1], attention.scale_for(keys.shape[-1])
    queries, keys = (features.to(values.dtype) for features in here.score.as_dot(queries, keys))
    if not torch.is_grad_enabled():
        queries, keys, values = queries.detach(), keys.detach(), values.detach()  # on a CPU it refuses what could learn
    ahead = keys.shape[-2] - queries.shape[-2]  # how far the first query stands from the first key

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return here.biased(here.capped(score), Pairs(batch, head, row, row + ahead, key))

    told = _fused(
        _wide_enough(queries),
        _wide_enough(keys),
        _wide_enough(values),
        score_mod=None if here.softcap is None and here.bias is None else score_mod,
        block_mask=None if attention.mask == everyone else _blocks(attention.mask, queries, keys),
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
        kernel_options=_options(queries, here),
        return_aux=asked,
    )
    return told[..., :d_v] if asked is None else (told[0][..., :d_v], told[1])


def _blocks(mask: Mask, queries: Tensor, keys: Tensor) -> BlockMask:
    """Which blocks of the matrix are seen, in part or as a whole. Making it takes as long as the attention itself, so
    the last ones are remembered: by the identity of their tensors, since comparing numbers would wait for the GPU."""
    if torch.compiler.is_compiling():
        return _made(mask, queries, keys)
    sizes = queries.shape[:3], keys.shape[-2], queries.device
    known = identity(mask), sizes
    if known not in _remembered:
        while len(_remembered) >= MASKS:
            del _remembered[next(iter(_remembered))]
        _remembered[known] = mask, _made(mask, queries, keys)  # kept, so that nothing else gets the mask's identity
    return _remembered[known][1]


def _made(mask: Mask, queries: Tensor, keys: Tensor) -> BlockMask:
    """FlexAttention's create_block_mask, which forms the n x n mask, a row of blocks at a time."""
    (batch, heads, rows, _), columns, device = queries.shape, keys.shape[-2], queries.device
    here: Mask = moved(mask, device)
    ahead = columns - rows
    step = rows if torch.compiler.is_compiling() else TILE  # the compiler fuses it by itself, and would unroll a loop
    some, every = [], []
    for start in range(0, rows, step):
        block = range(start, min(start + step, rows))
        at = Pairs.block(block, range(columns), of=(rows, columns), batch=batch, heads=heads, device=device)
        seen = here.sees(at)
        seen = seen.expand(*seen.shape[:2], len(block), columns)
        whole = pad(seen, (0, -columns % TILE, 0, -len(block) % TILE))
        tiles = whole.reshape(*whole.shape[:2], -1, TILE, whole.shape[-1] // TILE, TILE)
        some.append(tiles.any(-1).any(3))
        every.append(tiles.all(-1).all(3))
    full = torch.cat(every, dim=2)
    partial = torch.cat(some, dim=2) & ~full

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return here.sees(Pairs(batch, head, row, row + ahead, key))

    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=TILE, mask_mod=mask_mod, seq_lengths=(rows, columns)
    )


def _listed(blocks: Bool[Tensor, "batch head rows columns"]) -> tuple[Tensor, Tensor]:
    """How many blocks of each row there are, and which: those first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()


def _flex(*inputs: Tensor, **how: Any) -> Any:
    """FlexAttention under a name of our own: torch counts compilations by function, and whoever else compiles it too
    often would take ours along to the n x n weights."""
    flex: Callable[..., Any] = flex_attention
    return flex(*inputs, **how)


@cache
def _compiled() -> Callable[..., Any]:
    """Once for each size: with sizes and numbers left open, torch 2.11 finds no kernel for some definitions."""
    return torch.compile(_flex, fullgraph=True, dynamic=False)


def _fused(*inputs: Tensor, **how: Any) -> Any:
    if torch.compiler.is_compiling():
        return _flex(*inputs, **how)
    with torch._dynamo.config.patch(recompile_limit=DEFINITIONS):
        return _compiled()(*inputs, **how)


def _options(queries: Tensor, attention: Attention) -> dict[str, Any] | None:
    """What torch would choose otherwise, and wrongly."""
    if queries.device.type != "cuda":
        return None
    options: dict[str, Any] = {}
    if queries.shape[-2] > 1:  # for few queries in groups of heads its decoding kernel has no size that fits
        options["BACKEND"] = "TRITON"
    if queries.dtype != torch.float32 and any(True for _ in tensors(attention.bias)):
        options |= {"BLOCK_N": 64, "num_stages": 2}  # a bias that is read takes as much room as the scores themselves
    if queries.dtype == torch.float32 and not _less_precise():
        options["FLOAT32_PRECISION"] = "'ieee'"
    return options


def _less_precise() -> bool:
    """float32 is float32, unless the user allows less: torch 2.9 to 2.12 take TF32 unasked (pytorch#161022)."""
    return not torch.compiler.is_compiling() and torch.get_float32_matmul_precision() != "highest"


def _wide_enough(tensor: Float[Tensor, "batch heads position d"]) -> Float[Tensor, "batch heads position width"]:
    """Zeros change neither q·k nor the first d_v features of the context."""
    missing = NARROWEST - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing > 0 else tensor
