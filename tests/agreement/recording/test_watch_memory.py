"""A recording takes memory that grows with the tokens and not with their square, and counts all of it."""

import gc
from types import FunctionType, ModuleType

import pytest
import torch
from torch import nn

import telescope as ts
from support.huggingface import transformers
from support.watched import FAMILIES, IDS
from support.watching import KEEPS
from telescope.interception import interceptor
from telescope.interception.huggingface.definition import OFFSETS, DefinitionReader
from telescope.interception.huggingface.masks import MaskOffsets

LEFT_OUT = (type, ModuleType, FunctionType, nn.Module)
pytestmark = pytest.mark.usefixtures("without_gradients")


def held_by(*roots):
    """Return the bytes of all tensors that can be reached from these objects, each storage once."""
    seen, found, storages = set(), list(roots), {}
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, LEFT_OUT):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if not one.is_meta:
                storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            continue
        found += gc.get_referents(one)
    return sum(storages.values())


ONE_LAYER = {
    "t5": {"num_layers": 1, "num_decoder_layers": 1},
    "llama": {"num_hidden_layers": 1, "max_position_embeddings": 512},
}


def one_layer(family):
    config = getattr(transformers, FAMILIES[family].config)(**(FAMILIES[family].options | ONE_LAYER[family]))
    torch.manual_seed(0)
    return getattr(transformers, FAMILIES[family].kind)(config).eval()


@pytest.mark.parametrize("family", ONE_LAYER)
def test_a_generation_of_400_tokens(family):
    """Measured while the model generates: what the watch holds, and what `nbytes` says."""
    model, sizes = one_layer(family), {}

    def measure(ids, scores, **options):
        written = ids.shape[1] - (0 if family == "t5" else IDS.shape[1])
        if written in (100, 200, 400):
            (looking,) = {one for interceptors in interceptor.interceptors.values() for one in interceptors}
            nbytes = looking.handler.recording.nbytes  # reading surveys the rows that wait
            sizes[written] = held_by(looking), nbytes
        scores[:, model.config.eos_token_id] = -torch.inf
        return scores

    inputs = {"input_ids": IDS[:1], "attention_mask": torch.ones_like(IDS[:1])}
    with ts.watch(model) as recording:
        model.generate(**inputs, max_new_tokens=401, do_sample=False, num_beams=1, logits_processor=[measure])
    for of_what in zip(*(sizes[written] for written in (100, 200, 400)), strict=True):
        first, second, third = of_what
        assert third - second <= 2.2 * (second - first)
    assert all(nbytes <= held <= 1.1 * nbytes + 2**15 for held, nbytes in sizes.values())
    assert recording.nbytes == held_by(recording)


@pytest.mark.parametrize("surveyed", [False, True], ids=["", "asked"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("family", ["t5", "gpt-oss", "llama"])
def test_everything_that_is_kept_is_counted(family, keep, surveyed, tmp_path):
    """Definitions with their tensors (biases, sinks, masks), token ids, and surveys computed on request."""
    model, inputs = FAMILIES[family].model(), dict(FAMILIES[family].inputs)
    if family == "llama":
        inputs["attention_mask"] = torch.ones(2, 1, 8, 8, dtype=torch.bool).tril()
    with ts.watch(model, keep=keep) as recording:
        model(**inputs)
    if surveyed:
        recording.heads()
    assert recording.nbytes == held_by(recording)
    stream = recording._stream.nbytes if keep == "steps" else 0
    assert recording.nbytes <= stream + sum(watched.call.nbytes for watched in recording.values())
    recording.save(tmp_path / "run.telescope")
    opened = ts.open(tmp_path / "run.telescope")
    assert opened.nbytes > held_by(opened)  # the numbers in its files, and the tensors of its definitions


def test_only_the_latest_mask_offsets_are_remembered():
    reader, config = DefinitionReader(), object()
    for keys in range(1, 400):
        reader.remember_offsets(config, MaskOffsets(1, 1, keys, keys - 1, 0), torch.ones(1, keys))
    assert len(reader._offsets) == OFFSETS
