"""torch's scaled_dot_product_attention, expressed as a definition: both agree wherever torch can express it too."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, assert_near, normal, tensors
from telescope.engines import sdpa

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


@pytest.mark.parametrize("broken", ["", "query", "key", "value"])
@pytest.mark.parametrize("mask", [ts.everyone, ts.causal], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_plain_call_is_that_of_the_engine(mask, dtype, broken):
    """The short way through `attend` has the bits of the long one, and a NaN spreads as in the reference."""
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 2, 3, 6, 16, dtype=dtype)
    attention = ts.Attention(mask=mask)
    if broken:
        {"query": queries, "key": keys, "value": values}[broken][1, 2, 4] = torch.nan
    assert sdpa.is_one_plain_call(queries, keys, values, attention)
    short = ts.attend(queries, keys, values, attention)
    if not broken:
        assert torch.equal(short, ts.attend(queries, keys, values, attention, engine="sdpa"))
    expected = ts.attend(queries, keys, values, attention, engine="reference")
    assert torch.equal(short.isnan(), expected.isnan())
    assert_close(short, expected, equal_nan=True, **({} if dtype != torch.bfloat16 else {"atol": 2e-2, "rtol": 2e-2}))


@pytest.mark.parametrize(
    "attention",
    [
        ts.Attention(scale=-1.0),
        ts.Attention(softcap=2.0),
        ts.Attention(sink=0.0),
        ts.Attention(normalize=ts.by_sum),
        ts.Attention(bias=ts.alibi(3)),
        ts.Attention(mask=ts.window(2)),
    ],
    ids=str,
)
def test_other_definitions_take_the_long_way(attention):
    x = torch.rand(2, 3, 6, 16)
    assert not sdpa.is_one_plain_call(x, x, x, attention)
    assert not sdpa.is_one_plain_call(x, x[:, :1], x[:, :1], ts.Attention())
