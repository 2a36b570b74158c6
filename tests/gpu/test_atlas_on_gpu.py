"""An atlas made on a GPU has the numbers of one made on a CPU, and reading a batch does not wait for the GPU."""

import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import mapping
from support.huggingface import LLAMA, numbered, transformers
from telescope.atlases.fingerprint import tensor_checksums, weights_checksum

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def made(**more):
    options = LLAMA | {"hidden_size": 256, "head_dim": 64, "max_position_embeddings": 512} | more
    return numbered(transformers.LlamaForCausalLM(transformers.LlamaConfig(**options))).eval()


@torch.no_grad()
def test_the_numbers_of_a_cpu():
    model, texts = made(), mapping.corpus(12, least=40, most=400)
    expected = ts.atlas(model, texts, tokenizer=mapping.Letters())
    found = ts.atlas(model.cuda(), texts, tokenizer=mapping.Letters())
    assert torch.equal(found.sums.distribution.count, expected.sums.distribution.count)
    assert torch.equal(found.sums.class_tokens, expected.sums.class_tokens)
    for name in ("numerator", "denominator", "distances", "positions", "classes"):
        sums, others = getattr(found.sums, name).value, getattr(expected.sums, name).value
        assert_close(sums, others, rtol=2e-3, atol=2e-2)
    for size in expected.map_sizes():
        assert_close(
            found.map(expected.layers[1], 0, size), expected.map(expected.layers[1], 0, size), atol=1e-3, rtol=0
        )


def waits(model, count):
    """Return how often the host waits for the GPU while an atlas of `count` batches of one shard is made."""
    texts = ["ab cd, ef." * 20] * (4 * count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            ts.atlas(model, texts, tokenizer=mapping.Letters(), batch=4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    ours = str(Path(ts.__file__).parent)  # transformers waits too, watched or not, to see whether texts are packed
    waiting = [each for each in caught if "synchronizing" in str(each.message) and each.filename.startswith(ours)]
    return [f"{each.filename}:{each.lineno}" for each in waiting]


@torch.no_grad()
def test_a_batch_more_is_no_wait_more():
    model = made().cuda().to(torch.bfloat16)
    waits(model, 1)  # compiles kernels, and compares the definition with the model's output
    few, many = waits(model, 2), waits(model, 6)
    assert len(many) == len(few), sorted({*many} - {*few})


def test_weights_have_the_checksum_of_a_cpu():
    """In every precision and at odd sizes; and a GPU is waited for once, not for every tensor."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = made(num_hidden_layers=4).to(dtype)
        expected = weights_checksum(model)
        assert weights_checksum(model.cuda()) == expected
    numbers = torch.randint(-128, 127, (5_000_003,), dtype=torch.int8)
    assert tensor_checksums([numbers.cuda(), numbers.cuda()[1:]]) == tensor_checksums([numbers, numbers[1:]])
    changed = numbers.cuda()
    changed[4_999_999] ^= 64
    assert tensor_checksums([changed]) != tensor_checksums([numbers])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            weights_checksum(model)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([each for each in caught if "synchronizing" in str(each.message)]) <= 1
