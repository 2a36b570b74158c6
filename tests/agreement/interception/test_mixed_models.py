"""Models whose attentions are intercepted in two ways: parts of other libraries, or of the user, beside others."""

import pytest
import torch
from torch import nn

import telescope as ts
from support.foreign import assert_edited, assert_watched, numbered
from support.huggingface import transformers

WIDTH, HEADS, VOCABULARY = 24, 3, 37
IDS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
WORDS = torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(2))


class Summariser(nn.Module):
    """A BERT of transformers, read by torch's decoder: what a user puts together."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 40}
        config = transformers.BertConfig(vocab_size=VOCABULARY, **sizes)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 40, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, ids, words):
        read = self.bert(ids).last_hidden_state
        return self.decoder(self.bert.embeddings.word_embeddings(words), read)


def sam():
    """Its image encoder calls torch's function by itself; the rest uses the interface of transformers."""
    config = transformers.SamConfig(
        vision_config={"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32}
        | {"patch_size": 4, "output_channels": 16, "window_size": 4, "global_attn_indexes": [1], "num_pos_feats": 8},
        prompt_encoder_config={"hidden_size": 16, "image_size": 32, "patch_size": 4, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": 16, "mlp_dim": 20, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
    )
    return transformers.SamModel(config)


def siglip():
    """Its head is a torch.nn.MultiheadAttention, which asks the image with one learnt query."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "intermediate_size": 40}
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes, image_size=16, patch_size=4))


PICTURE = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
POINTS = torch.tensor([[[[3.0, 4.0], [9.0, 9.0]]]])
MODELS = {
    "bert and torch": (Summariser, (IDS, WORDS), 2 + 4),
    "sam": (sam, {"pixel_values": PICTURE, "input_points": POINTS}, 2 + 7),
    "siglip": (siglip, {"pixel_values": PICTURE[..., :16, :16]}, 2 + 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_attentions_are_recorded(name):
    make, inputs, count = MODELS[name]
    recording = assert_watched(numbered(make()), inputs)
    assert len(recording) == count


@pytest.mark.parametrize("name", MODELS)
def test_all_attentions_are_edited(name):
    make, inputs, _ = MODELS[name]
    assert_edited(numbered(make()), inputs)


def test_attentions_stand_in_the_order_of_the_model():
    with ts.watch(Summariser().eval()) as recording:
        pass
    assert [*recording] == [
        *(f"bert.encoder.layer.{i}.attention.self" for i in (0, 1)),
        *(f"decoder.layers.{i}.{part}" for i in (0, 1) for part in ("self_attn", "multihead_attn")),
    ]


class Named(nn.Module):
    """A part of Telescope's that has the name of a function of Telescope's."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = ts.layers.Attend()

    def forward(self, x):
        return self.attend(x, x, x, ts.Attention())


def test_a_part_that_is_called_attend_is_no_call_of_the_function():
    model = Named()
    with ts.watch(model) as recording:
        model(torch.randn(1, 2, 3, 4))
    assert [*recording] == ["attention"]
    assert not recording.left_out


def test_layers_select_from_both():
    model = Summariser().eval()
    with torch.no_grad(), ts.watch(model, layers=["decoder.layers.1.*", "bert.encoder.layer.0.*"]) as recording:
        model(IDS, WORDS)
    names = ["bert.encoder.layer.0.attention.self", "decoder.layers.1.self_attn", "decoder.layers.1.multihead_attn"]
    assert [*recording] == names
    assert all(watched.calls for watched in recording.values())
    with torch.no_grad(), ts.watch(model, layers="bert.*") as recording:
        model(IDS, WORDS)
    assert len(recording) == 2


def test_a_part_of_torch_beside_layers_of_telescope():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ours = ts.layers.MultiHeadAttention(WIDTH, HEADS)
            self.theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x):
            x = self.ours(x)
            return self.theirs(x, x, x, need_weights=False)[0]

    model = Model().eval()
    x = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        with ts.watch(model) as recording:
            output = model(x)
        inside = model.ours(x)
        weights = model.theirs(inside, inside, inside, average_attn_weights=False)[1]
        with ts.watch(model.ours) as alone:
            model.ours(x)
        assert torch.equal(output, model(x))
    assert [*recording] == ["ours", "theirs"]
    torch.testing.assert_close(recording["theirs"].received, weights.sum(2))
    assert torch.equal(recording["ours"].received, alone["attention"].received)
    with ts.edit(model, ts.mute("theirs")):
        torch.testing.assert_close(model(x), model.theirs.out_proj.bias.expand_as(x))
