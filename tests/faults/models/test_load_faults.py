"""A folder that is broken gives one sentence with the file and the tensor; nothing is executed, nothing half-loaded."""

import json
import os
import pickle
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

import telescope as ts
from support import writers
from support.sentences import load_says as says
from telescope.models import GPT, GPTConfig
from telescope.models.saved import weights

SHAPE = {"vocabulary": 11, "max_positions": 8, "d_model": 8, "blocks": 2, "heads": 2}
pytestmark = pytest.mark.usefixtures("as_users_run_it")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model") / "saved"
    GPT(GPTConfig(**SHAPE)).save(folder)
    return folder


@pytest.fixture
def saved(whole, tmp_path):
    """Return the folder of a saved model, for a test to break."""
    return shutil.copytree(whole, tmp_path / "saved")


# ---------------------------------------------------------------------------------------------------------- the path


def test_path_that_does_not_exist(saved):
    says(saved.parent / "savd", "savd does not exist", f'did you mean "{saved}"?')
    says(saved.parent / "something-else", "something-else does not exist")
    says(saved / "config.json" / "more", "cannot be read: not a directory")
    says("no\0name", "cannot be read", "null")


def test_path_that_is_a_file(saved):
    says(saved / "model.safetensors", "is a file; ts.load takes the folder")
    says(saved / "config.json", "is a file; ts.load takes the folder")


def test_empty_folder(tmp_path):
    says(tmp_path, "has no config.json")


def test_links(saved, tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    says(tmp_path / "circle", "circle cannot be read: its links go in a circle")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    says(tmp_path / "nowhere", "is a link to", "which does not exist")
    (saved / "config.json").unlink()
    (saved / "config.json").symlink_to(saved / "config.json")
    says(saved, "config.json cannot be read: its links go in a circle")
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    (saved / "config.json").unlink()
    says(tmp_path / "link", "has no config.json")


def test_a_pipe_is_refused_at_once(saved):
    (saved / "config.json").unlink()
    os.mkfifo(saved / "config.json")
    says(saved, "config.json is not a file")


def test_folder_in_place_of_a_file(saved):
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors").mkdir()
    says(saved, "model.safetensors is not a file")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_no_permission(saved, name, monkeypatch):
    """The operating system raises the error; a root user may be allowed everything."""
    (saved / "tokenizer.json").write_text("{}")
    opened = type(saved).open

    def forbidden(path, *arguments, **options):
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(type(saved), "open", forbidden)
    says(saved, f"{name} cannot be read: no permission")


# ------------------------------------------------------------------------------------------------------- config.json


def edit(saved, **fields):
    config = json.loads((saved / "config.json").read_text())
    config["config"] |= fields
    (saved / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("contents", "parts"),
    [
        ("", ["config.json is not JSON"]),
        ("{", ["config.json is not JSON"]),
        ("[1, 2]", ["config.json holds a JSON list"]),
        ('{"telescope": 1, "telescope": 1}', ['"telescope" is there twice']),
        ("[" * 100_000, ["config.json is not JSON", "nested too deep"]),
        ('{"telescope": 3}', ["config.json is of format 3", "reads 1 and 2"]),
        ('{"telescope": 1}', ['should have the fields "telescope", "model", "config" and "special"']),
        (
            '{"telescope": 1, "model": "GTP", "config": {}, "special": {}}',
            ['there is no model "GTP"', 'did you mean "GPT"?'],
        ),
        ('{"telescope": 1, "model": "GPT", "config": {}, "special": {"end": "x"}}', ["special id for end is 'x'"]),
        (
            '{"telescope": 1, "model": "GPT", "config": {}, "special": {"strat": 1}}',
            ['"strat"', 'did you mean "start"?'],
        ),
        ('{"model_type": "mamba"}', ['"mamba"', "gpt2, llama, mistral, qwen2", "marian"]),
        ('{"hidden_size": 4}', ["has no model_type", "gpt2, llama"]),
        ('{"model_type": 7}', ["is of model_type 7"]),
    ],
)
def test_config_that_cannot_be_read(saved, contents, parts):
    (saved / "config.json").write_text(contents)
    says(saved, "config.json", *parts)


def test_config_that_is_not_text(saved):
    (saved / "config.json").write_bytes(b"\xff\xfe{}")
    says(saved, "config.json is not JSON")


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"d_modl": 8}, ['has no field "d_modl"', 'did you mean "d_model"?']),
        ({"d_model": "8"}, ["d_model='8'"]),
        ({"heads": 3}, ["d_model=8 cannot be split into heads=3"]),
        ({"d_model": 2**60, "heads": 2**60, "key_heads": 3}, ["key_heads=3 does not divide heads=1152921504606846976"]),
        ({"norm": "leyer"}, ['did you mean "layer"?']),
        ({"blocks": 10**12}, ["blocks=1000000000000", "holds only", "tensors"]),
        ({"vocabulary": 10**30}, ["vocabulary is a whole number of 100 bits; at most 63 can be"]),
        ({"d_model": 2 * 10**9, "d_hidden": 2 * 10**9}, ["d_model=2000000000, but no tensor in"]),
        ({"d_hidden": 2 * 10**9}, ["d_hidden=2000000000, but no tensor in"]),
    ],
)
def test_config_that_does_not_fit(saved, fields, parts):
    edit(saved, **fields)
    says(saved, *parts)


# ------------------------------------------------------------------------------------------------ what the tensors are


@pytest.mark.parametrize("name", ["vocabulary", "d_model", "d_hidden", "heads"])
def test_a_width_that_no_tensor_has_is_refused_before_anything_is_built(tmp_path, name, monkeypatch):
    """The positions of a translator are computed: of a billion features they would take seconds and gigabytes."""
    writers.translator(encoder_blocks=1, decoder_blocks=1).save(tmp_path / "saved")
    monkeypatch.setattr(weights, "build_on_meta", lambda *_: pytest.fail("the model was built"))
    fields = {name: 10**9} | ({"d_model": 10**9} if name == "heads" else {})
    file = tmp_path / "saved" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"config": config["config"] | fields}))
    says(tmp_path / "saved", "config.json", "=1000000000, but no tensor in", "has a side above 340")


def change(saved, **tensors):
    """Write the weights with some of them replaced, or removed where None."""
    file = saved / "model.safetensors"
    weights = load_file(file) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, file)


def test_tensor_that_is_missing(saved):
    change(saved, norm__weight=None)
    says(saved, 'model.safetensors: tensor "norm.weight" is missing')


def test_an_unexpected_tensor(saved):
    change(saved, norm__more=torch.zeros(3))
    says(saved, 'model.safetensors: tensor "norm.more" has no place in the model')


def test_tensor_of_another_shape(saved):
    change(saved, norm__weight=torch.zeros(9))
    says(saved, 'model.safetensors: tensor "norm.weight" has shape [9]', "[8]")


@pytest.mark.parametrize(
    "numbers", [torch.zeros(8, dtype=torch.int8), torch.zeros(8, dtype=torch.int64), torch.zeros(8).bool()]
)
def test_tensor_of_another_dtype(saved, numbers):
    change(saved, norm__weight=numbers)
    says(saved, 'model.safetensors: tensor "norm.weight" is', "weights are F64, F32, F16, BF16")


def test_no_weights(saved):
    (saved / "model.safetensors").unlink()
    says(saved, "has no model.safetensors")


# ----------------------------------------------------------------------------------------------------- headers of files


def rewrite(saved, header, numbers=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (saved / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + numbers)


@pytest.mark.parametrize("size", [0, 5, 8, 20, 500, -1])
def test_truncated_file(saved, size):
    file = saved / "model.safetensors"
    contents = file.read_bytes()
    file.write_bytes(contents[:size])
    says(saved, "model.safetensors", "truncated")


def test_a_file_with_trailing_bytes(saved):
    with (saved / "model.safetensors").open("ab") as file:
        file.write(b"more")
    says(saved, "model.safetensors has 4 bytes after its last tensor")


@pytest.mark.parametrize("length", [2**63, 2**40, 10**6])
def test_header_that_is_longer_than_the_file(saved, length):
    file = saved / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    says(saved, "model.safetensors is truncated", f"{length:,}")


def test_a_header_of_absurd_length(saved):
    with (saved / "model.safetensors").open("r+b") as file:
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)  # which takes no room on the disk
    says(saved, "its header has 200,000,000 bytes")


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ({"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}, ["4,398,046,511,104", "truncated"]),
        ({"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 8]}, ["4,398,046,511,104 bytes", "has 8"]),
        ({"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}, ["has 8"]),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, ["F32 of shape [3], 12 bytes"]),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, ["not described"]),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, ["not described"]),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, ["not described"]),
        ({"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}, ["not described"]),
        ({"dtype": "F32", "shape": [1] * 99, "data_offsets": [0, 4]}, ["not described"]),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, ["from byte 8 to 0"]),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}, ["not described"]),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, ["not described"]),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, ["starts at byte 4", "0 is the next one free"]),
        ({"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}, ["F33", "an unknown dtype"]),
        ({"dtype": 32, "shape": [2], "data_offsets": [0, 8]}, ["not described"]),
        ({"dtype": "F32", "shape": [2]}, ["not described"]),
        (["F32", [2], [0, 8]], ["not described"]),
    ],
)
def test_a_header_with_a_wrong_tensor_entry(saved, entry, parts):
    rewrite(saved, {"norm.weight": entry}, b"\0" * 8)
    says(saved, 'model.safetensors: tensor "norm.weight"', *parts)


def test_tensors_that_overlap(saved):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    rewrite(saved, {"a": entry, "b": entry}, b"\0" * 8)
    says(saved, 'model.safetensors: tensor "b" starts at byte 0, where 8 is the next one free')


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        (b"not json", ["its header is not JSON"]),
        (b"\xff\xff", ["its header is not JSON"]),
        (b"[]", ["its header holds a JSON list"]),
        (b"[" * 50_000, ["nested too deep"]),
        (b'{"a": {}, "a": {}}', ['"a" is there twice']),
    ],
)
def test_header_that_cannot_be_read(saved, header, parts):
    rewrite(saved, header)
    says(saved, "model.safetensors: its header", *parts)


# ------------------------------------------------------------------------------------------------------ several files


@pytest.fixture
def sharded(saved):
    """Return the folder of the same model in two files."""
    weights = load_file(saved / "model.safetensors")
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, some in shards.items():
        save_file({name: weights[name] for name in some}, saved / shard)
    (saved / "model.safetensors").unlink()
    index(saved, {name: shard for shard, some in shards.items() for name in some})
    return saved


def index(saved, weight_map):
    (saved / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def shard_of(saved):
    return json.loads((saved / "model.safetensors.index.json").read_text())["weight_map"]


def test_shards_are_read_as_one(sharded, whole):
    state, expected = ts.load(sharded).state_dict(), ts.load(whole).state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "shard",
    ["../saved/a.safetensors", "/etc/passwd", "..", "a/../a.safetensors", "a\\b.safetensors", "a.bin", "", "a\0"],
)
def test_index_that_names_a_file_elsewhere(sharded, shard):
    index(sharded, shard_of(sharded) | {"norm.weight": shard})
    says(sharded, "index.json names", "which is not a safetensors file in the same folder")


def test_tensor_in_two_shards(sharded):
    save_file({"norm.weight": torch.zeros(8)}, sharded / "c.safetensors")
    index(sharded, shard_of(sharded) | {"more": "c.safetensors"})
    says(sharded, 'tensor "norm.weight" is in two files', "a.safetensors", "c.safetensors")


def test_shard_that_is_missing(sharded):
    (sharded / "b.safetensors").unlink()
    says(sharded, "b.safetensors does not exist")


def test_shard_without_a_tensor_of_the_index(sharded):
    index(sharded, shard_of(sharded) | {"more": "a.safetensors"})
    says(sharded, 'a.safetensors: tensor "more" is missing, though')


def test_shard_with_a_tensor_that_is_not_in_the_index(sharded):
    where = shard_of(sharded)
    del where["norm.weight"]
    index(sharded, where)
    says(sharded, 'tensor "norm.weight" is not listed for this file')


@pytest.mark.parametrize("weight_map", [None, {}, [], {"norm.weight": 7}])
def test_index_without_a_map(sharded, weight_map):
    index(sharded, weight_map)
    says(sharded, 'index.json has no "weight_map"')


# ------------------------------------------------------------------------------------------------------------- pickles


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
@pytest.mark.parametrize("beside_a_config", [True, False])
def test_pickle_is_never_opened(saved, name, beside_a_config, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (saved / "model.safetensors").unlink()
    if not beside_a_config:
        (saved / "config.json").unlink()
    (saved / name).write_bytes(pickle.dumps(Bomb()))
    says(saved, f"{name} is a pickle", "safetensors.torch.save_file")
    says(saved / name, f"{name} is a pickle", "safetensors.torch.save_file")
    torch.save({"a": Bomb()}, saved / name)
    says(saved, f"{name} is a pickle")
    assert not (tmp_path / "exploded").exists()


# ------------------------------------------------------------------------------------------------------- the tokenizer


PANIC = {"type": "BPE", "continuing_subword_prefix": "####", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"version": "1.0", "model": {"type": "none"}}',
        json.dumps({"version": "1.0", "added_tokens": [], "model": PANIC}).encode(),  # ends in a panic in Rust
    ],
)
def test_tokenizer_that_cannot_be_read(saved, contents):
    (saved / "tokenizer.json").write_bytes(contents)
    says(saved, "tokenizer.json is not ", " that can be read")


# ------------------------------------------------------------------------------------------------------------ arguments


def test_a_dtype_that_weights_cannot_have(saved):
    with pytest.raises(ValueError, match=r"dtype=torch.int64 is not a dtype of weights"):
        ts.load(saved, dtype=torch.int64)
