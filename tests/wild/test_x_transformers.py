"""Models of x-transformers with flash=True, which is torch's scaled_dot_product_attention."""

import pytest
import torch

import telescope as ts
from support.foreign import assert_edited, assert_watched, numbered

x_transformers = pytest.importorskip("x_transformers")

IDS = torch.randint(1, 37, (2, 11), generator=torch.Generator().manual_seed(1))
OPTIONS = {
    "decoder": {},
    "rotary": {"rotary_pos_emb": True},
    "norms of queries and keys": {"attn_qk_norm": True},
    "alibi": {"alibi_pos_bias": True},
    "groups": {"heads": 4, "attn_kv_heads": 2},
    "one key head": {"attn_one_kv_head": True},
    "memory": {"attn_num_mem_kv": 2},
}
ENCODERS = ("memory",)


def model_of(name, *, flash=True):
    layers = x_transformers.Encoder if name in ENCODERS else x_transformers.Decoder
    options = {"dim": 24, "depth": 2, "heads": 3, "attn_dim_head": 8, "attn_flash": flash} | OPTIONS[name]
    return numbered(x_transformers.TransformerWrapper(num_tokens=37, max_seq_len=16, attn_layers=layers(**options)))


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name):
    recording = assert_watched(model_of(name), (IDS,))
    assert [*recording] == ["attn_layers.layers.0.1.attend", "attn_layers.layers.2.1.attend"]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_edited(name):
    assert_edited(model_of(name), (IDS,))


def test_padding_is_left_out():
    real = torch.tensor([[True] * 11, [True] * 7 + [False] * 4])
    model = model_of("decoder")
    assert_watched(model, {"x": IDS, "mask": real}, real)


def translator():
    sides = {}
    for side in ("enc", "dec"):
        sides |= {f"{side}_num_tokens": 37, f"{side}_depth": 2, f"{side}_heads": 3, f"{side}_max_seq_len": 16}
        sides |= {f"{side}_attn_dim_head": 8, f"{side}_attn_flash": True}
    return numbered(x_transformers.XTransformer(dim=24, **sides))


def test_a_translator_that_returns_its_loss():
    recording = assert_watched(translator(), (IDS, IDS[:, :6]))
    across = [one.name for one in recording.values() if one.call.across]
    assert len(recording) == 6
    assert len(across) == 2
    assert_edited(translator(), (IDS, IDS[:, :6]))


def test_without_flash_its_attentions_are_named_and_left_out():
    model = model_of("decoder", flash=False)
    with pytest.warns(UserWarning, match="attn_layers.layers.0.1.attend"), ts.watch(model) as recording:
        model(IDS)
    assert len(recording.left_out) == 2
