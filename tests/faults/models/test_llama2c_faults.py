"""Files of llama2.c are read to the last byte, or refused with the reason."""

import struct

import pytest
import torch

import telescope as ts
from support import llama2c
from support.sentences import load_says as says


def header(file, **changed):
    contents = file.read_bytes()
    sizes = dict(zip(llama2c.SIZES, struct.unpack_from("<7i", contents), strict=True)) | changed
    file.write_bytes(struct.pack("<7i", *sizes.values()) + contents[28:])


@pytest.mark.parametrize("vocab_size", [262, -262])
def test_every_tensor_is_where_it_belongs(tmp_path, vocab_size):
    file, tensors = llama2c.write(tmp_path, vocab_size=vocab_size)
    embedding, norms_1, wq, wk, wv, wo, norms_2, w1, w2, w3, norm, _, _, *head = tensors
    model = ts.load(file)
    assert model.config.tied == (vocab_size > 0)
    assert torch.equal(model.embedding.weight, embedding)
    assert torch.equal(model.head_weight, head[0] if head else embedding)
    assert torch.equal(model.norm.weight, norm)
    for n, block in enumerate(model.blocks):
        assert torch.equal(block.add_norm_1.norm.weight, norms_1[n])
        assert torch.equal(block.self_attention.W_qkv.weight, torch.cat([wq[n], wk[n], wv[n]]))
        assert torch.equal(block.self_attention.W_O.weight, wo[n])
        assert torch.equal(block.add_norm_2.norm.weight, norms_2[n])
        assert torch.equal(block.feed_forward.W_1.weight, w1[n])
        assert torch.equal(block.feed_forward.W_2.weight, w2[n])
        assert torch.equal(block.feed_forward.W_3.weight, w3[n])


def test_a_file_of_another_size(tmp_path):
    file, _ = llama2c.write(tmp_path)
    size = file.stat().st_size
    header(file, dim=2**30, vocab_size=2**30)
    says(tmp_path, f"model.bin has {size:,} bytes; a model of llama2.c with dim=1073741824")
    header(file, dim=8, vocab_size=262)
    with file.open("r+b") as opened:
        opened.truncate(size - 4)
    says(tmp_path, f"has {size - 4:,} bytes", f"has {size:,}")


@pytest.mark.parametrize("changed", [{"dim": 0}, {"n_layers": -1}, {"vocab_size": 0}, {"n_heads": -(2**31)}])
def test_a_header_that_is_not_valid(tmp_path, changed):
    header(llama2c.write(tmp_path)[0], **changed)
    ((name, value),) = changed.items()
    says(tmp_path, "is not a model of llama2.c", f"{name}={value}")


def test_heads_that_do_not_fit(tmp_path):
    llama2c.write(tmp_path, n_heads=2, n_kv_heads=2)
    ts.load(tmp_path)
    header(tmp_path / "model.bin", n_heads=4, n_kv_heads=4, seq_len=20)
    ts.load(tmp_path)  # the same bytes are that too
    llama2c.write(tmp_path, n_heads=4, n_kv_heads=3)
    says(tmp_path, "key_heads=3 does not divide heads=4")


def test_other_formats(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"24ka" + bytes(300))
    says(tmp_path, "is of a later format of llama2.c", "--version 0")
    (tmp_path / "model.bin").write_bytes(b"12345678901")
    says(tmp_path, "has 11 bytes, fewer than the header")
    (tmp_path / "model.bin").write_bytes(b"")
    says(tmp_path, "has 0 bytes, fewer than the header")


def test_several_files(tmp_path):
    llama2c.write(tmp_path)
    (tmp_path / "other.bin").write_bytes(b"")
    says(tmp_path, "several files", "model.bin, other.bin")


# ---------------------------------------------------------------------------------------------------------- tokenizer


def test_the_tokenizer_is_read_from_the_same_folder(tmp_path):
    file, _ = llama2c.write(tmp_path)
    assert ts.load(file).tokenizer is None
    llama2c.write_tokenizer(tmp_path)
    assert ts.load(file).tokenizer.encode("a a").ids == [1, 261, 261]
    llama2c.write_tokenizer(tmp_path, learned=(" ", "b", " b"), name="tok262.bin")
    assert ts.load(file).tokenizer.encode("b b").ids == [1, 261, 261]


def test_a_tokenizer_of_another_size_is_ignored(tmp_path):
    file, _ = llama2c.write(tmp_path)
    llama2c.write_tokenizer(tmp_path, learned=(" ", "a"))
    assert ts.load(file).tokenizer is None


def test_tokenizer_that_cannot_be_read(tmp_path):
    llama2c.write(tmp_path)
    file = llama2c.write_tokenizer(tmp_path)
    whole = file.read_bytes()
    for broken, part in [
        (whole[:-1], "piece 261 should have 2 bytes; the file is truncated"),
        (whole[:-6], "piece 261 cannot be read"),
        (whole[:4], "is not a tokenizer of llama2.c"),
        (whole.replace(b"<0x41>", b"<0x42>"), "is not a tokenizer of llama2.c"),
        (whole[:-2] + b"\xff\xff", "piece 261 cannot be read"),
        (whole[:8] + struct.pack("<i", -1) + whole[12:], "piece 0 should have -1 bytes"),
        (whole[:8] + struct.pack("<i", 2**31 - 1) + whole[12:], "piece 0 should have 2,147,483,647 bytes"),
    ]:
        file.write_bytes(broken)
        says(tmp_path, "tokenizer.bin", part)
    llama2c.write_tokenizer(tmp_path, learned=(" ", "a", "a"))
    says(tmp_path, "tokenizer.bin has the same piece twice")


def test_a_piece_of_any_length_is_refused(tmp_path):
    """Every way to split a piece is tried: those of a million letters would fill the memory."""
    llama2c.write(tmp_path)
    llama2c.write_tokenizer(tmp_path, learned=(" ", "a", "a" * 1_000_000))
    says(tmp_path, "tokenizer.bin: piece 261 should have 1,000,000 bytes; 128 are the most")
