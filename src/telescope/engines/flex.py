"""torch's FlexAttention: a definition with its mask, bias, softcap and sink, compiled into one
kernel.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from operator import index
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

from ..attention import (
    Attention,
    Context,
    IdentityCache,
    Keys,
    Mask,
    Pairs,
    Queries,
    Values,
    everyone,
    has_data,
    tensors,
    to_device,
)
from . import torch_modes

TILE = 128  # queries and keys of a block, FlexAttention's own default
MIN_FEATURES = 16  # a narrower product does not fit a tensor core
# Kernels of one process. torch stops compiling at 8, and then forms the n x n weights.
RECOMPILE_LIMIT = 256
MAX_BLOCK_MASKS = 16  # in the cache

_block_masks = IdentityCache(MAX_BLOCK_MASKS)


def _missing_requirement(device: str) -> str | None:
    """Return what this machine lacks to run FlexAttention on a kind of device, or None."""
    # torch compiles CPU kernels with this compiler, too.
    compiler = os.environ.get("CXX", "g++")
    if device == "cuda":
        return None if find_spec("triton") else "it needs triton, pip install triton"
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return "on a CPU it needs AVX2"
    return None if shutil.which(compiler) else f"on a CPU it needs the C++ compiler {compiler}"


# computed at import, since torch.compile could not trace it
MISSING_REQUIREMENTS = {device: _missing_requirement(device) for device in ("cuda", "cpu")}


def cannot(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float = 0.0
) -> str | None:
    """Return why this engine cannot run the call, or None if it can."""
    if attention._kernel_obstacle is not None:
        return attention._kernel_obstacle
    if dropout > 0.0:
        return "it has no dropout"
    if queries.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it has no {str(queries.dtype).removeprefix('torch.')}"
    if 0 in (*queries.shape, *keys.shape, values.shape[-1]):
        return "there is nothing to compute"
    if queries.device.type not in MISSING_REQUIREMENTS:
        return f"it does not run on {queries.device.type} devices"
    if not torch.compiler.is_compiling() and not has_data(queries):
        return "it needs tensors with data"
    if torch_modes.is_exporting():
        return "torch.export cannot hold a kernel that is compiled for one size"
    if torch.compiler.is_compiling():
        for tensor in tensors(attention):
            if tensor.device != queries.device:
                return (
                    f"inside torch.compile it cannot move what is on {tensor.device}; "
                    f"attention.to({str(queries.device)!r}) can"
                )
    if MISSING_REQUIREMENTS[queries.device.type] or queries.device.type == "cuda":
        return MISSING_REQUIREMENTS[queries.device.type]
    inputs = (queries, keys, values, *tensors(attention))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return "on a CPU it has no gradients"
    if attention.sink is not None:
        return "a sink needs the log-sum-exp, which it does not give on a CPU"
    return None


def attend(
    queries: Queries, keys: Keys, values: Values, attention: Attention, dropout: float = 0.0
) -> Context:
    """Return the context, (batch, heads, query, d_v); the first call of each size compiles a
    kernel.
    """
    if attention.sink is None:
        context: Tensor = _run_kernel(queries, keys, values, attention)
        return context
    # The kernel knows no sink: its weight follows from the log-sum-exp of each row.
    context, outputs = _run_kernel(queries, keys, values, attention, AuxRequest(lse=True))
    sink = torch.as_tensor(attention.sink, dtype=outputs.lse.dtype, device=queries.device)
    # e^lse / (e^lse + e^sink): the weight that the sink leaves.
    remaining = torch.sigmoid(outputs.lse - sink.reshape(-1, 1))
    return (context * remaining.unsqueeze(-1)).to(context.dtype)


def lse(
    queries: Queries, keys: Keys, values: Values, attention: Attention
) -> Float[Tensor, "batch heads query"]:
    """Return the natural log-sum-exp of each query's scores, without the sink, as computed by the
    kernel.
    """
    _, outputs = _run_kernel(queries, keys, values, attention, AuxRequest(lse=True))
    log_sum_exp: Tensor = outputs.lse
    return log_sum_exp


def _run_kernel(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    request: AuxRequest | None = None,
) -> Any:
    """Return the context; with `request`, a pair of the context and the requested outputs."""
    # Tensors that the kernel reads must be on its device.
    moved: Attention = to_device(attention, queries.device)
    d_v = values.shape[-1]
    scale = attention.scale_for(keys.shape[-1])
    queries, keys = (features.to(values.dtype) for features in moved.score.as_dot(queries, keys))
    if not torch.is_grad_enabled():
        # on a CPU FlexAttention refuses tensors that require a gradient, even under no_grad
        queries = queries.detach()
        keys = keys.detach()
        values = values.detach()
    ahead = _first_position(queries, keys)

    # Called for one pair at a time, with scalars, while the kernel is compiled.
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return moved.biased(moved.capped(score), Pairs(batch, head, row, row + ahead, key))

    result = _run_compiled(
        _pad_features(queries),
        _pad_features(keys),
        _pad_features(values),
        # Without softcap and bias the kernel is simpler, and faster.
        score_mod=None if moved.softcap is None and moved.bias is None else score_mod,
        block_mask=None
        if attention.mask == everyone
        else _block_mask(attention.mask, queries, keys),
        scale=scale,
        enable_gqa=torch_modes.constant(queries.shape[1] != keys.shape[1]),
        kernel_options=_kernel_options(queries, moved),
        return_aux=request,
    )
    return result[..., :d_v] if request is None else (result[0][..., :d_v], result[1])


def _block_mask(mask: Mask, queries: Tensor, keys: Tensor) -> BlockMask:
    """Return which blocks of the matrix are visible, in part or fully.

    Making a block mask takes as long as the attention itself, so the last ones are cached by the
    identity of their tensors: comparing numbers would wait for the GPU.
    """
    if torch.compiler.is_compiling():
        return _make_block_mask(mask, queries, keys)
    sizes = (queries.shape[:3], keys.shape[-2], queries.device)
    found: BlockMask = _block_masks.get_or_make(
        mask, sizes, lambda: _make_block_mask(mask, queries, keys)
    )
    return found


def _make_block_mask(mask: Mask, queries: Tensor, keys: Tensor) -> BlockMask:
    """Make the block mask one row of blocks at a time; FlexAttention's create_block_mask forms the
    n x n mask.
    """
    batch, heads, rows, _ = queries.shape
    columns = keys.shape[-2]
    device = queries.device
    moved: Mask = to_device(mask, device)
    ahead = _first_position(queries, keys)
    # torch.compile fuses one step, and would unroll a loop.
    step = rows if torch.compiler.is_compiling() else TILE
    any_visible = []
    all_visible = []
    for start in range(0, rows, step):
        block = range(start, min(start + step, rows))
        at = Pairs.block(
            block, range(columns), of=(rows, columns), batch=batch, heads=heads, device=device
        )
        # One row of blocks: TILE queries against all keys.
        seen = moved.sees(at)
        seen = seen.expand(*seen.shape[:2], len(block), columns)
        padded = pad(seen, (0, -columns % TILE, 0, -len(block) % TILE))
        # Blocks of TILE x TILE; what is padded counts as hidden.
        tiles = padded.reshape(*padded.shape[:2], -1, TILE, padded.shape[-1] // TILE, TILE)
        any_visible.append(tiles.any(-1).any(3))
        all_visible.append(tiles.all(-1).all(3))
    # Full blocks need no mask inside of the kernel, partial ones do.
    full = torch.cat(all_visible, dim=2)
    partial = torch.cat(any_visible, dim=2) & ~full

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return moved.sees(Pairs(batch, head, row, row + ahead, key))

    return BlockMask.from_kv_blocks(
        *_list_blocks(partial),
        *_list_blocks(full),
        BLOCK_SIZE=TILE,
        mask_mod=mask_mod,
        seq_lengths=(rows, columns),
    )


def _first_position(queries: Tensor, keys: Tensor) -> int:
    """Return the position of the first query, as a constant that FlexAttention can compile into its
    kernel.

    Inside torch.compile lengths may be symbols, which fail in the kernel; `index` makes
    torch.compile take the number.
    """
    return index(keys.shape[-2] - queries.shape[-2])


def _list_blocks(blocks: Bool[Tensor, "batch head rows columns"]) -> tuple[Tensor, Tensor]:
    """Return the number of True blocks in each row, and the columns of each row with the True ones
    first.
    """
    columns = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), columns.int()


def _flex_attention(*inputs: Tensor, **options: Any) -> Any:
    """Call FlexAttention from a function of our own.

    torch counts compilations by function: other code that compiles flex_attention too often would
    otherwise push our calls over the limit too, to the n x n weights.
    """
    flex: Callable[..., Any] = flex_attention
    return flex(*inputs, **options)


@cache
def _compiled() -> Callable[..., Any]:
    """Return the compiled function. Each size compiles anew: torch 2.11 has no dynamic kernel for
    some definitions.
    """
    return torch.compile(_flex_attention, fullgraph=True, dynamic=False)


def _run_compiled(*inputs: Tensor, **options: Any) -> Any:
    """Run FlexAttention compiled, by torch.compile around the call where there is one."""
    if torch.compiler.is_compiling():
        return _flex_attention(*inputs, **options)
    # Within our own call alone: others keep their limit.
    with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
        return _compiled()(*inputs, **options)


def _kernel_options(queries: Tensor, attention: Attention) -> dict[str, Any] | None:
    """Return the kernel options for which torch's own choice fails or is imprecise."""
    if queries.device.type != "cuda":
        return None
    options: dict[str, Any] = {}
    # torch's decoding kernel has no block size for few queries in groups of heads.
    if queries.shape[-2] > 1:
        options["BACKEND"] = "TRITON"
    # A bias read from memory takes as much shared memory as the scores.
    if queries.dtype != torch.float32 and any(True for _ in tensors(attention.bias)):
        options |= {"BLOCK_N": 64, "num_stages": 2}
    if queries.dtype == torch.float32 and not _tf32_allowed():
        options["FLOAT32_PRECISION"] = "'ieee'"
    return options


def _tf32_allowed() -> bool:
    """Return whether the user allows less than float32; torch 2.9 to 2.12 would take TF32 unasked
    (pytorch#161022).
    """
    return not torch.compiler.is_compiling() and torch.get_float32_matmul_precision() != "highest"


def _pad_features(
    tensor: Float[Tensor, "batch heads position d"],
) -> Float[Tensor, "batch heads position width"]:
    """Return `tensor` with at least `MIN_FEATURES` features; zeros change neither q·k nor the
    context's first d_v.
    """
    # Zeros in front of nothing: only narrow heads are padded.
    missing = MIN_FEATURES - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing > 0 else tensor
