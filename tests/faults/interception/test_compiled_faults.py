"""Compiled code that needs more memory than there is, and code that is exported, are errors before anything runs."""

import pytest
import torch

import telescope as ts
from support.watched import FAMILIES
from telescope.recording import Device, storage
from telescope.words import format_bytes


def test_more_than_there_is_memory_for_is_said_before_it_runs(monkeypatch):
    model = FAMILIES["llama"].model()
    ran = []
    code = torch.compile(model, backend="eager")
    monkeypatch.setattr(storage, "SMALL", 0)
    monkeypatch.setattr(Device, "free_bytes", lambda store, device: (1000, "memory of cpu"))
    model.lm_head.register_forward_hook(lambda *arguments: ran.append(1))
    sizes = model.config.num_attention_heads + 2 * model.config.num_key_value_heads
    # Two layers, one text of nine tokens, numbers of four bytes.
    needed = 2 * 9 * sizes * model.model.layers[0].self_attn.head_dim * 4
    assert needed > 1000
    with (
        pytest.raises(
            ValueError,
            match=rf"2 attentions at once, {format_bytes(needed)} for 1 x 9 tokens, and {format_bytes(1000)}",
        ),
        ts.watch(model),
    ):
        code(torch.arange(1, 10)[None], use_cache=False)
    assert not ran


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_inside_of_a_block_is_an_error(strict):
    model = FAMILIES["llama"].model()
    ids = torch.arange(1, 10)[None]
    expected = model(ids, use_cache=False).logits
    with (
        pytest.raises(Exception, match="nor of what is exported; compile the model itself"),
        ts.watch(model),
    ):
        torch.export.export(model, (ids,), kwargs={"use_cache": False}, strict=strict)
    # The model is as it was.
    assert torch.equal(model(ids, use_cache=False).logits, expected)
