"""Models of transformers, loaded by Telescope, have the same logits; so have Telescope's models after an export."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import telescope as ts
from support import huggingface

transformers = huggingface.transformers
CLOSE = {"atol": 1e-4, "rtol": 0.0}
pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(scope="module", params=huggingface.GPTS)
def gpt(request, tmp_path_factory):
    return both(huggingface.gpt(request.param), tmp_path_factory)


@pytest.fixture(scope="module", params=huggingface.MARIANS)
def marian(request, tmp_path_factory):
    return both(huggingface.marian(request.param), tmp_path_factory)


@pytest.fixture(scope="module", params=huggingface.BERTS)
def bert(request, tmp_path_factory):
    return both(huggingface.bert(request.param), tmp_path_factory)


def both(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return theirs, ts.load(folder)


def draw(*shape, seed=0, low=1, high=huggingface.VOCABULARY):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------------------------- GPT and the like


def test_gpt_has_the_logits_of_transformers(gpt):
    theirs, ours = gpt
    ids = draw(2, 23)
    logits = ours(ids)
    assert logits.std() > 0.3
    assert_close(logits, theirs(ids).logits, **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_gpt_has_the_logits_of_transformers_when_padded(gpt, side):
    """Batches of 17, 9 and 2 tokens; behind padding the first real token is at position 0."""
    theirs, ours = gpt
    lengths = torch.tensor([17, 9, 2])
    slots = torch.arange(17).expand(3, -1)
    keep = slots >= 17 - lengths[:, None] if side == "left" else slots < lengths[:, None]
    positions = (keep.cumsum(-1) - 1).clamp(min=0)
    ids = draw(3, 17) * keep
    expected = theirs(ids, attention_mask=keep.long(), position_ids=positions).logits
    logits = ours(ids, mask=ts.padding(keep=keep), positions=positions)
    assert_close(logits[keep], expected[keep], **CLOSE)
    alone = ours(ids[2:, keep[2]])
    assert_close(logits[2, keep[2]][None], alone, **CLOSE)


def test_gpt_has_the_logits_of_transformers_step_by_step(gpt):
    theirs, ours = gpt
    ids = draw(2, 15)
    cache = ours.cache(batch=2, room=15)
    steps = [ours(ids[:, :6], cache=cache), *(ours(ids[:, i : i + 1], cache=cache) for i in range(6, 15))]
    assert_close(torch.cat(steps, dim=1), theirs(ids).logits, **CLOSE)


def test_gpt_in_several_files_loads_as_one_model(tmp_path):
    theirs = huggingface.gpt("llama")
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_close(ts.load(tmp_path)(draw(2, 23)), theirs(draw(2, 23)).logits, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpt_keeps_its_dtype_when_loaded_and_exported(tmp_path, dtype):
    theirs = huggingface.gpt("llama").to(dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = ts.load(tmp_path / "theirs")
    ts.export(ours, tmp_path / "exported")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert {p.dtype for p in (*ours.parameters(), *back.parameters())} == {dtype}
    assert all(torch.equal(p, q) for p, q in zip(theirs.parameters(), back.parameters(), strict=True))


def test_an_exported_gpt_has_the_same_logits(gpt, tmp_path):
    theirs, ours = gpt
    ts.export(ours, tmp_path / "exported")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    ids = draw(2, 23)
    assert_close(back(ids).logits, ours(ids), **CLOSE)
    assert_close(back(ids).logits, theirs(ids).logits, **CLOSE)


# -------------------------------------------------------------------------------------- Marian


def test_marian_has_the_logits_of_transformers(marian):
    theirs, ours = marian
    source, target = draw(2, 19), draw(2, 11, seed=1, high=53)
    logits = ours(source, target)
    assert logits.std() > 0.3
    assert_close(logits, theirs(input_ids=source, decoder_input_ids=target).logits, **CLOSE)


def test_marian_has_the_logits_of_transformers_when_padded(marian):
    theirs, ours = marian
    source, target = draw(3, 12), draw(3, 7, seed=1, high=53)
    keep = torch.arange(12) < torch.tensor([12, 5, 1])[:, None]
    written = torch.arange(7) < torch.tensor([3, 7, 1])[:, None]
    expected = theirs(
        input_ids=source,
        attention_mask=keep.long(),
        decoder_input_ids=target,
        decoder_attention_mask=written.long(),
    ).logits
    logits = ours(source, target, source_mask=ts.padding(keep=keep), target_mask=ts.padding(keep=written))
    assert_close(logits[written], expected[written], **CLOSE)


def test_marian_has_the_logits_of_transformers_step_by_step(marian):
    theirs, ours = marian
    source, target = draw(2, 12), draw(2, 7, seed=1, high=53)
    cache = ours.cache(ours.encode(source), room=7)
    steps = [ours.logits(ours.decode(target[:, i : i + 1], cache=cache)) for i in range(7)]
    assert_close(torch.cat(steps, dim=1), theirs(input_ids=source, decoder_input_ids=target).logits, **CLOSE)


def test_an_exported_marian_has_the_same_logits(marian, tmp_path):
    _, ours = marian
    ts.export(ours, tmp_path / "exported")
    back = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported")
    source, target = draw(2, 19), draw(2, 11, seed=1, high=53)
    assert_close(back(input_ids=source, decoder_input_ids=target).logits, ours(source, target), **CLOSE)


# -------------------------------------------------------------------------------------------------------------- BERT


def test_bert_has_the_states_of_transformers(bert):
    theirs, ours = bert
    ids, types = draw(2, 19), draw(2, 19, seed=1, low=0, high=2)
    expected = theirs(ids, token_type_ids=types)
    hidden = ours(ids, types=types)
    assert hidden.std() > 0.3
    assert_close(hidden, expected.last_hidden_state, **CLOSE)
    assert_close(ours.pool(hidden), expected.pooler_output, **CLOSE)
    assert_close(ours(ids), theirs(ids).last_hidden_state, **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_bert_has_the_states_of_transformers_when_padded(bert, side):
    theirs, ours = bert
    lengths = torch.tensor([12, 5, 1])[:, None]
    keep = torch.arange(12) >= 12 - lengths if side == "left" else torch.arange(12) < lengths
    positions = (keep.cumsum(-1) - 1).clamp(min=0)
    ids = draw(3, 12) * keep
    expected = theirs(ids, attention_mask=keep.long(), position_ids=positions).last_hidden_state
    hidden = ours(ids, mask=ts.padding(keep=keep), positions=positions)
    assert_close(hidden[keep], expected[keep], **CLOSE)


def test_an_exported_bert_has_the_same_states(bert, tmp_path):
    _, ours = bert
    ts.export(ours, tmp_path / "exported")
    back = transformers.AutoModel.from_pretrained(tmp_path / "exported")
    ids = draw(2, 19)
    assert_close(back(ids).last_hidden_state, ours(ids), **CLOSE)
    assert_close(back(ids).pooler_output, ours.pool(ours(ids)), **CLOSE)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_bert_with_a_task_head_loads_without_the_head(kind, tmp_path_factory):
    theirs, ours = both(huggingface.bert("bert", kind), tmp_path_factory)
    ids = draw(2, 19)
    assert_close(ours(ids), theirs.bert(ids).last_hidden_state, **CLOSE)
    assert ours.config.pooling == ("bert" if kind == "BertForPreTraining" else "mean")


def test_bert_with_tensor_names_of_2018_loads(bert, tmp_path):
    theirs, ours = bert
    theirs.save_pretrained(tmp_path)
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    assert_close(ts.load(tmp_path)(draw(2, 9)), ours(draw(2, 9)), atol=0.0, rtol=0.0)


# ------------------------------------------------------------------------------------------------------- there and back


def test_every_gpt_survives_a_round_trip(gpt, tmp_path):
    assert_survives_round_trip(gpt[1], tmp_path)


def test_marian_survives_a_round_trip(marian, tmp_path):
    assert_survives_round_trip(marian[1], tmp_path)


def test_bert_survives_a_round_trip(bert, tmp_path):
    assert_survives_round_trip(bert[1], tmp_path)


def assert_survives_round_trip(ours, tmp_path):
    """Check that saving and exporting keep the config, the special ids and every bit."""
    ours.save(tmp_path / "saved")
    ts.export(ours, tmp_path / "exported")
    for again in (ts.load(tmp_path / "saved"), ts.load(tmp_path / "exported")):
        assert again.config == ours.config
        assert again.special == ours.special
        assert not again.training
        state, expected = again.state_dict(), ours.state_dict()
        assert state.keys() == expected.keys()
        for name in expected:
            assert torch.equal(state[name], expected[name]), name
