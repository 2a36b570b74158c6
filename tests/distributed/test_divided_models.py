"""Models spread over devices and processes are watched, mapped and edited as whole ones are."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import divided
import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import mapping
from support.huggingface import LLAMA, transformers
from telescope.atlases.fingerprint import weights_checksum

SCRIPT = Path(divided.__file__)
pytestmark = pytest.mark.filterwarnings("ignore:the Parquet tables")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(path)
    return path


def whole(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad(), ts.watch(model, also="norms") as recording:
        model(divided.IDS)
    atlas = ts.atlas(model, mapping.corpus(8), tokenizer=mapping.Letters(), shard=300)
    return recording, atlas, divided.edited(model)


def assert_alike(found, expected):
    """Counts are equal bit by bit; sums as far as processes that add up parts of a product agree."""
    (recording, atlas, logits), (other, whole_atlas, whole_logits) = found, expected
    assert logits.keys() == whole_logits.keys()
    for name, numbers in whole_logits.items():
        assert_close(logits[name], numbers, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    for name in other:
        assert recording[name].call.heads == other[name].call.heads
        for part in ("entropy", "received"):
            assert_close(getattr(recording[name], part), getattr(other[name], part), atol=1e-5, rtol=1e-5)
        norms, whole_norms = (of[name].call._kept["norms"].tensor for of in (recording, other))
        assert_close(norms, whole_norms, atol=1e-6, rtol=1e-5)
        assert_close(recording[name].head(3).peak.weight, other[name].head(3).peak.weight, atol=1e-5, rtol=1e-5)
    assert torch.equal(atlas.sums.distribution.count, whole_atlas.sums.distribution.count)
    assert atlas.places == whole_atlas.places
    assert_close(atlas.sums.numerator.value, whole_atlas.sums.numerator.value, atol=1e-3, rtol=1e-5)
    assert_close(atlas.sums.distances.value, whole_atlas.sums.distances.value, atol=1e-3, rtol=1e-5)
    for layer, head in atlas.places:
        texts = [text.excerpt for text in atlas.evidence(layer, head, "first")]
        assert all(texts)
        assert texts == [text.excerpt for text in whole_atlas.evidence(layer, head, "first")]


def test_tensor_parallel_and_sharded_models_are_joined_in_the_first_process(folder, tmp_path):
    source = os.pathsep.join(str(path) for path in (Path(ts.__file__).parents[1], SCRIPT.parents[1]))
    settled = {"OMP_NUM_THREADS": "1", "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), str(folder), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | settled, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = whole(folder)
    for name in ("tensor-parallel", "fsdp"):
        found = ts.open(tmp_path / f"{name}.telescope"), ts.open(tmp_path / name), torch.load(tmp_path / f"{name}.pt")
        assert_alike(found, expected)
    plain = expected[2]["nothing"]
    assert all(not torch.allclose(plain, expected[2][name], atol=1e-4) for name in ("mute both", "boost", "redefine"))


def test_a_model_spread_by_a_device_map_is_watched_mapped_and_edited(folder, tmp_path):
    pytest.importorskip("accelerate")
    parts = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.norm", "lm_head")
    places = dict.fromkeys(parts, "cpu") | {"model.layers.1": "disk"}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, device_map=places, offload_folder=tmp_path / "off"
    )
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu", "meta"}
    with torch.no_grad(), ts.watch(model, also="norms") as recording:
        model(divided.IDS)
    atlas = ts.atlas(model, mapping.corpus(8), tokenizer=mapping.Letters(), shard=300)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert weights_checksum(model) == weights_checksum(loaded)  # on disk, too
    assert_alike((recording, atlas, divided.edited(model)), whole(folder))


def test_heads_of_a_divided_model_cannot_be_selected(folder, monkeypatch):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    monkeypatch.setitem(inspect.unwrap(ts.watch).__globals__, "tensor_parallel_size", lambda model: 2)
    with pytest.raises(ValueError, match="divided among processes"), ts.watch(model, heads=0):
        pass
