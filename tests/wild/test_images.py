"""Vision transformers of timm and torchvision, with random weights, as the libraries build them."""

import warnings

import pytest
import torch

import telescope as ts
from support.foreign import assert_edited, assert_watched, numbered

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

SMALL = {"img_size": 32, "num_classes": 7}
FLAT = SMALL | {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
WINDOWS = SMALL | {"patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)}
OF_TIMM = {
    "vit": ("vit_tiny_patch16_224", FLAT),
    "vit, norms of queries and keys": ("vit_tiny_patch16_224", FLAT | {"qk_norm": True}),
    "vit, pooled by an attention": ("vit_tiny_patch16_224", FLAT | {"global_pool": "map", "class_token": False}),
    "deit with registers": ("deit3_small_patch16_224", FLAT | {"reg_tokens": 4}),
    "distilled deit": ("deit_tiny_distilled_patch16_224", FLAT),
    "eva": ("eva02_tiny_patch14_224", FLAT),
    "beit": ("beit_base_patch16_224", FLAT),
    "swin": ("swin_tiny_patch4_window7_224", WINDOWS),
}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _fused():
    """Let timm call torch's attention wherever it can; Swin and BEiT do so only where asked to."""
    timm.layers.set_fused_attn(True, experimental=True)
    yield
    timm.layers.set_fused_attn(True, experimental=False)


def of_timm(name):
    kind, options = OF_TIMM[name]
    return numbered(timm.create_model(kind, **options))


@pytest.mark.parametrize("name", OF_TIMM)
def test_timm(name):
    recording = assert_watched(of_timm(name), (IMAGES,))
    assert all(len(one.calls) == 1 for one in recording.values())


@pytest.mark.parametrize("name", OF_TIMM)
def test_timm_is_edited(name):
    assert_edited(of_timm(name), (IMAGES,))


def test_an_image_of_registers_has_as_many_keys_as_its_tokens():
    recording = assert_watched(of_timm("deit with registers"), (IMAGES,))
    assert recording["blocks.0.attn"].call.size == (21, 21)  # 16 patches, a class token and 4 registers


def test_without_the_switch_swin_is_named_and_left_out():
    timm.layers.set_fused_attn(True, experimental=False)
    model = of_timm("swin")
    with pytest.warns(UserWarning, match="ran and cannot be recorded") as found, ts.watch(model) as recording:
        model(IMAGES)
    assert len(recording.left_out) == 4
    assert "layers.0.blocks.0.attn" in str(found[0].message)


def test_torchvisions_vit():
    model = numbered(torchvision.models.VisionTransformer(32, 8, 2, 3, 24, 40, num_classes=7))
    assert_watched(model, (IMAGES,))
    assert_edited(model, (IMAGES,))


def test_torchvisions_maxvit_weighs_by_hand_and_is_named():
    model = torchvision.models.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 4, 0.0, num_classes=7).eval()
    with pytest.warns(UserWarning, match="MaxVit: 4 attentions compute the weights by code of their own"):  # noqa: SIM117
        with ts.watch(model) as recording:
            model(IMAGES)
    assert len(recording.left_out) == 4


def test_torchvisions_swin_weighs_by_hand_and_is_refused():
    model = torchvision.models.SwinTransformer([4, 4], 12, [2, 2], [2, 4], [4, 4], num_classes=7)
    with pytest.raises(ValueError, match=r"by hand.*features.1.0.attn.*call torch.nn.functional"), ts.watch(model):
        pass


def test_a_training_pass_has_the_weights_without_dropout():
    """The output is random; the weights before dropout are not."""
    kind, options = OF_TIMM["vit"]
    model = numbered(timm.create_model(kind, **options, attn_drop_rate=0.5)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ts.watch(model) as recording:
            model(IMAGES).sum().backward()
    first = recording["blocks.0.attn"]
    assert first.call.dropout == 0.5
    assert float((first.received.sum(-1) - 17).abs().max()) < 1e-3
