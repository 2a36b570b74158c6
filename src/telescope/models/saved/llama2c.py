"""Files of llama2.c: a .bin with seven sizes and the weights, and a tok*.bin with token pieces and
their scores.
"""

import struct
from math import prod
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from ...files import LoadError, StoredTensors, TensorsInMemory, paths
from ..gpt import GPT, GPTConfig
from ..model import Model, Special
from .weights import TensorName, build_model, load_weights, row, rows_for

# Seven little-endian whole numbers of 32 bits.
HEADER = struct.Struct("<7i")
SIZES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
NEWER = b"24ka"  # the first bytes of llama2.c's later formats

LONGEST_PIECE = 128  # bytes of a piece of a tokenizer: every way to split it is tried
# Ids of the first pieces; learned pieces follow.
UNKNOWN = 0
BEGIN = 1
END = 2
BYTES = range(3, 259)


def load(
    file: Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Model:
    """Return the model in a .bin file, with the tokenizer in the same folder if its vocabulary has
    the same size.
    """
    sizes = _read_sizes(file)
    tensors = _read_weights(file, sizes)
    model = build_model(GPT, lambda: _config(sizes), file, tensors)
    load_weights(
        model, tensors, rows_for(TABLE, model), unused=("rope_*",), device=device, dtype=dtype
    )
    # Training texts follow each other: the start of the next one ends a text.
    model.special = Special(start=BEGIN, end=(BEGIN, END))
    model.tokenizer = _find_tokenizer(file, abs(sizes["vocab_size"]))
    return model.eval()


def check_is_llama2c(file: Path) -> Path:
    """Return the path if it ends in .bin; else raise a LoadError."""
    if file.suffix == ".bin":
        return file
    if file.suffix in paths.PICKLE_SUFFIXES:
        raise paths.pickle_error(file)
    raise LoadError(f"{file} is a file; ts.load takes the folder of a model, or a .bin of llama2.c")


def find_in_folder(folder: Path) -> Path:
    """Return the only .bin in a folder without a config.json."""
    candidates = [
        name
        for name in paths.list_names(folder)
        if name.endswith(paths.PICKLE_SUFFIXES) and not name.startswith("tok")
    ]
    if not candidates:
        raise LoadError(f"{folder} has no config.json, so its model is unknown")
    if len(candidates) > 1:
        raise LoadError(
            f"{folder} has no config.json, and several files that may be models: "
            f"{', '.join(candidates)}"
        )
    return check_is_llama2c(folder / candidates[0])


# -------------------------------------------------------------------------------------- the weights

TABLE: list[TensorName] = [
    row("embedding.weight", "embedding"),
    row("head.weight", "head"),
    row("blocks.{n}.add_norm_1.norm.weight", "attention_norm.{n}"),
    row("blocks.{n}.self_attention.W_qkv.weight", "wq.{n}", "wk.{n}", "wv.{n}"),
    row("blocks.{n}.self_attention.W_O.weight", "wo.{n}"),
    row("blocks.{n}.add_norm_2.norm.weight", "ffn_norm.{n}"),
    row("blocks.{n}.feed_forward.W_1.weight", "w1.{n}"),
    row("blocks.{n}.feed_forward.W_2.weight", "w2.{n}"),
    row("blocks.{n}.feed_forward.W_3.weight", "w3.{n}"),
    row("norm.weight", "norm"),
]


def _read_sizes(file: Path) -> dict[str, int]:
    """Return the seven sizes in the header; a LoadError where the file is not of llama2.c's first
    format.
    """
    start = paths.read_start(file, HEADER.size)
    # The first bytes of zip files and of pickles.
    if start.startswith((b"PK", b"\x80")):
        raise paths.pickle_error(file)
    if start.startswith(NEWER):
        raise LoadError(
            f"{file} is of a later format of llama2.c; the first is read: export.py --version 0 "
            "writes it"
        )
    if len(start) < HEADER.size:
        raise LoadError(
            f"{file} has {len(start)} bytes, fewer than the header of llama2.c's files has"
        )
    sizes = dict(zip(SIZES, HEADER.unpack(start), strict=True))
    if min(abs(size) if name == "vocab_size" else size for name, size in sizes.items()) < 1:
        header = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise LoadError(f"{file} is not a model of llama2.c: its header says {header}")
    return sizes


def _read_weights(file: Path, sizes: dict[str, int]) -> StoredTensors:
    """Return the float32 tensors after the header, by the names in TABLE; the file stacks each kind
    over all layers.
    """
    d, hidden, layers, heads, key_heads, vocabulary, n = sizes.values()
    d_k = d // heads
    # In the order of the file, each kind over all layers.
    stacked = {
        "attention_norm": (d,),
        "wq": (heads * d_k, d),
        "wk": (key_heads * d_k, d),
        "wv": (key_heads * d_k, d),
        "wo": (d, heads * d_k),
        "ffn_norm": (d,),
        "w1": (hidden, d),
        "w2": (d, hidden),
        "w3": (hidden, d),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding": (abs(vocabulary), d)}
    shapes |= {name: (layers, *shape) for name, shape in stacked.items()}
    shapes |= {"norm": (d,), "rope_cos": (n, d_k // 2), "rope_sin": (n, d_k // 2)}
    # A negative vocabulary means that the head is not tied.
    shapes |= {"head": (abs(vocabulary), d)} if vocabulary < 0 else {}

    # The size must fit to the byte: the format has no names and no checksum.
    expected = HEADER.size + 4 * sum(map(prod, shapes.values()))
    size = file.stat().st_size
    if size != expected:
        header = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise LoadError(
            f"{file} has {size:,} bytes; a model of llama2.c with {header} has {expected:,}"
        )
    numbers = torch.from_numpy(np.fromfile(file, dtype="<f4", offset=HEADER.size))
    parts = numbers.split_with_sizes([prod(shape) for shape in shapes.values()])
    tensors = {
        name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)
    }
    by_layer = {
        f"{name}.{layer}": tensors[name][layer] for name in stacked for layer in range(layers)
    }
    return TensorsInMemory(
        file, {name: tensor for name, tensor in tensors.items() if name not in stacked} | by_layer
    )


def _config(sizes: dict[str, int]) -> GPTConfig:
    """Return the config of a Llama with these sizes; llama2.c rotates neighbouring features."""
    d, hidden, layers, heads, key_heads, vocabulary, n = sizes.values()
    return GPTConfig(
        vocabulary=abs(vocabulary),
        max_positions=n,
        d_model=d,
        blocks=layers,
        heads=heads,
        key_heads=key_heads,
        d_hidden=hidden,
        positions="rotary",
        rotary_pairs="neighbours",
        norm="rms",
        activation="silu",
        gated=True,
        bias=False,
        tied=vocabulary > 0,
    )


# ------------------------------------------------------------------------------------ the tokenizer


def _find_tokenizer(file: Path, vocabulary: int) -> Tokenizer | None:
    """Return the tokenizer next to a model with `vocabulary` pieces, tok512.bin or tokenizer.bin
    for 512; or None.
    """
    for name in (f"tok{vocabulary}.bin", "tokenizer.bin"):
        if name in paths.list_names(file.parent):
            tokenizer = read_tokenizer(file.parent / name)
            return tokenizer if tokenizer.get_vocab_size() == vocabulary else None
    return None


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the byte-pair tokenizer in a tok*.bin: of all pairs that form a piece, the best score
    is merged first.
    """
    pieces = _read_pieces(file)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    # llama2.c merges the pair with the best score; as BPE, merges in the order of scores.
    learned = sorted(pieces[BYTES.stop :], key=lambda piece: -piece[1])
    # Every way to make a piece of two others.
    splits = ((piece[:at], piece[at:]) for piece, _ in learned for at in range(1, len(piece)))
    merges = [(left, right) for left, right in splits if left in ids and right in ids]

    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=pieces[UNKNOWN][0], byte_fallback=True)
    )
    # llama2.c puts a space in front of a text, and takes it away again.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BEGIN)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(pieces[i][0], normalized=False) for i in (BEGIN, END)])
    return tokenizer


def _read_pieces(file: Path) -> list[tuple[str, float]]:
    """Return the pieces in a tok*.bin with their scores.

    The format: one number (the length of the longest piece), then for each piece its score, its
    length and its bytes.
    """
    contents = paths.read_bytes(file, at_most=10_000_000)
    pieces: list[tuple[str, float]] = []
    at = 4
    try:
        while at < len(contents):
            # A score, a length and so many bytes.
            score, length = struct.unpack_from("<fi", contents, at)
            at += 8 + length
            if length > LONGEST_PIECE:
                raise LoadError(
                    f"{file}: piece {len(pieces):,} should have {length:,} bytes; {LONGEST_PIECE} "
                    "are the most"
                )
            if length < 1 or at > len(contents):
                raise LoadError(
                    f"{file}: piece {len(pieces):,} should have {length:,} bytes; the file is "
                    "truncated"
                )
            pieces.append((contents[at - length : at].decode("utf-8"), score))
    except (struct.error, UnicodeDecodeError) as error:
        raise LoadError(f"{file}: piece {len(pieces):,} cannot be read: {error}") from None
    # Without the 256 bytes unknown characters could not be written.
    if len(pieces) < BYTES.stop or any(
        pieces[i][0] != f"<0x{byte:02X}>" for byte, i in enumerate(BYTES)
    ):
        raise LoadError(
            f"{file} is not a tokenizer of llama2.c: its pieces 3 to 258 should be <0x00> to <0xFF>"
        )
    if len({piece for piece, _ in pieces}) < len(pieces):
        raise LoadError(f"{file} has the same piece twice")
    return pieces
