"""The second pass of the tests of LADDER cuts where the first one does not."""

import re
from pathlib import Path

import pytest
import torch

import telescope as ts
from support import small_blocks
from telescope.surveys import chunked
from telescope.surveys.blocks import blocks

SIZE = re.compile(r"^(?:\w+, )*(ROWS|GROUP|KEYS|SCORES|BLOCK|FEW)\b[^=\n(]*= ", re.MULTILINE)
ROOT = Path(ts.__file__).parent


def test_every_size_of_a_block_is_known():
    """A new size is shrunk in small_blocks.py, or the reason against it is given there."""
    files = {path: path.read_text() for path in ROOT.rglob("*.py")}
    named = {
        ".".join(("telescope", *path.relative_to(ROOT).with_suffix("").parts))
        for path, text in files.items()
        if SIZE.search(text)
    }
    assert len(named) >= 10
    assert named <= {*small_blocks.SIZES, *small_blocks.OTHERS}


def test_every_file_of_ladder_exists():
    assert all((Path(__file__).parents[1] / place).is_file() for place in small_blocks.LADDER)


@pytest.mark.parametrize("mask", [ts.everyone, ts.causal], ids=repr)
def test_a_dozen_tokens_are_cut_into_several_blocks(mask):
    q = torch.randn(1, 2, 12, 4)
    attention = ts.Attention(mask=mask)

    def cut():
        return len(list(blocks(q, q, attention, chunked.SCORES["cpu"])))

    whole = cut()
    with small_blocks.small_blocks():
        assert cut() >= 8 > whole == 1
    assert cut() == whole
