"""torch's scaled_dot_product_attention, expressed as a definition: both agree wherever torch can express it too."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import telescope as ts
from strategies import Shape, assert_near, normal, tensors

square = Shape(3, 4, 4, 7, 7, 8, 8)
grouped = Shape(3, 6, 2, 7, 7, 8, 5)
across = Shape(3, 4, 4, 7, 11, 8, 5)
coin = normal(3, 4, 7, 11, seed=9) < 0.5
coin[..., 0] = True  # where a row sees nothing, torch and Telescope differ on purpose
added = normal(3, 4, 7, 11, seed=10)

CASES = {
    "plain": (square, ts.Attention(), {}),
    "is_causal": (square, ts.Attention(mask=ts.causal), {"is_causal": True}),
    "scale": (square, ts.Attention(scale=0.3), {"scale": 0.3}),
    "scale and is_causal": (square, ts.Attention(scale=2.0, mask=ts.causal), {"scale": 2.0, "is_causal": True}),
    "enable_gqa": (grouped, ts.Attention(), {"enable_gqa": True}),
    "enable_gqa and is_causal": (grouped, ts.Attention(mask=ts.causal), {"enable_gqa": True, "is_causal": True}),
    "two sequences": (across, ts.Attention(), {}),
    "bool mask": (across, ts.Attention(mask=ts.from_tensor(coin)), {"attn_mask": coin}),
    "bool mask, one row": (across, ts.Attention(mask=ts.from_tensor(coin[:, :, :1])), {"attn_mask": coin[:, :, :1]}),
    "bool mask (query, key)": (across, ts.Attention(mask=ts.from_tensor(coin[0, 0])), {"attn_mask": coin[0, 0]}),
    "bool mask, the other polarity": (across, ts.Attention(mask=ts.from_forbidden(~coin)), {"attn_mask": coin}),
    "float mask": (across, ts.Attention(bias=ts.from_additive(added)), {"attn_mask": added}),
    "float mask of -inf": (
        across,
        ts.Attention(bias=ts.from_additive(torch.zeros_like(added).masked_fill(~coin, -torch.inf))),
        {"attn_mask": coin},
    ),
    "the last rows of a causal mask": (
        across,
        ts.Attention(mask=ts.causal),
        {"attn_mask": torch.ones(7, 11, dtype=torch.bool).tril(diagonal=4)},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "attention", "options"), CASES.values(), ids=CASES)
def test_attend_equals_scaled_dot_product_attention(shape, attention, options, dtype):
    q, k, v = tensors(shape, dtype=dtype)
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = options | {"attn_mask": mask.to(dtype)}
    assert_near(ts.attend(q, k, v, attention), scaled_dot_product_attention(q, k, v, **options))


def test_masks_for_multihead_attention():
    """torch.nn.MultiheadAttention: True = forbidden, heads folded into the batch, padding by key."""
    torch.manual_seed(0)
    batch, heads, length, width = 2, 3, 5, 4
    theirs = torch.nn.MultiheadAttention(heads * width, heads, bias=False, batch_first=True, dtype=torch.float64)
    x = normal(batch, length, heads * width, seed=1)
    forbidden = normal(batch * heads, length, length, seed=2) < 0
    forbidden[..., 0] = False
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    expected, _ = theirs(x, x, x, attn_mask=forbidden, key_padding_mask=padded, need_weights=False)

    q, k, v = (
        part.unflatten(-1, (heads, width)).transpose(1, 2) for part in (x @ theirs.in_proj_weight.T).chunk(3, dim=-1)
    )
    mask = ts.from_forbidden(forbidden, heads=heads) & ts.padding(keep=~padded)
    context = ts.attend(q, k, v, ts.Attention(mask=mask)).transpose(1, 2).flatten(2)
    assert_near(context @ theirs.out_proj.weight.T, expected)
