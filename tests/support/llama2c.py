"""A small file in llama2.c's format with random numbers, and a tokenizer for it."""

import struct

import torch

SIZES = {"dim": 8, "hidden_dim": 12, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 262, "seq_len": 10}


def write(folder, **changed):
    sizes = SIZES | changed
    d, hidden, layers, heads, key_heads, vocabulary, n = sizes.values()
    kv, half, pieces = key_heads * d // heads, d // heads // 2, abs(vocabulary)
    shapes = [(pieces, d), (layers, d), (layers, d, d), (layers, kv, d), (layers, kv, d), (layers, d, d), (layers, d)]
    shapes += [(layers, hidden, d), (layers, d, hidden), (layers, hidden, d), (d,), (n, half), (n, half)]
    shapes += [(pieces, d)] if vocabulary < 0 else []
    random = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=random) for shape in shapes]
    file = folder / "model.bin"
    file.write_bytes(struct.pack("<7i", *sizes.values()) + b"".join(tensor.numpy().tobytes() for tensor in tensors))
    return file, tensors


def write_tokenizer(folder, learned=(" ", "a", " a"), name="tokenizer.bin"):
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    scored = [(piece.encode(), -max(i - 258.0, 0.0)) for i, piece in enumerate(pieces)]
    packed = (struct.pack("<fi", score, len(piece)) + piece for piece, score in scored)
    (folder / name).write_bytes(struct.pack("<i", 7) + b"".join(packed))
    return folder / name
