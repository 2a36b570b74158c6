"""A loaded model equals the saved one bit by bit; a broken file is a LoadError; an older file is never lost."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

import telescope as ts
from support import llama2c
from telescope.files.atomic import atomic_file, atomic_folder, recover
from telescope.files.errors import WriteError
from telescope.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    LuongConfig,
    LuongTranslator,
    Special,
    Transformer,
    TransformerConfig,
)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
pytestmark = pytest.mark.usefixtures("as_users_run_it")


def small(**options):
    return GPT(GPTConfig(vocabulary=11, max_positions=8, d_model=8, blocks=2, heads=2, **options))


def words():
    tokenizer = Tokenizer(models.WordLevel({"what": 0, "is": 1, "this": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    small().save(tmp_path_factory.mktemp("files") / "saved")
    return tmp_path_factory.getbasetemp()


def same(ours, theirs):
    mine, other = ours.state_dict(), theirs.state_dict()
    return mine.keys() == other.keys() and all(
        mine[name].dtype == other[name].dtype and torch.equal(mine[name], other[name]) for name in mine
    )


# ------------------------------------------------------------------------------------------------------ there and back

GPTS = st.fixed_dictionaries(
    {},
    optional={
        "key_heads": st.sampled_from([1, 2]),
        "d_k": st.sampled_from([2, 6]),
        "d_hidden": st.integers(1, 9),
        "positions": st.sampled_from(["learned", "rotary", "none"]),
        "rotary_pairs": st.sampled_from(["halves", "neighbours"]),
        "rotary_scaling": st.sampled_from(["linear", "llama3"]),
        "window": st.integers(1, 5),
        "norm": st.sampled_from(["layer", "rms"]),
        "norm_eps": st.floats(1e-12, 1e-3),
        "activation": st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]),
        "gated": st.booleans(),
        "bias": st.booleans(),
        "attention_bias": st.booleans(),
        "out_bias": st.booleans(),
        "tied": st.booleans(),
        "dropout": st.floats(0.0, 0.9),
    },
)
TRANSFORMERS = st.fixed_dictionaries(
    {},
    optional={
        "target_vocabulary": st.just(13),
        "decoder_heads": st.just(4),
        "decoder_d_hidden": st.integers(1, 9),
        "shared": st.booleans(),
        "tied": st.booleans(),
        "head_bias": st.booleans(),
        "scaled": st.booleans(),
        "positions": st.sampled_from(["sinusoidal", "sinusoidal_halves", "learned"]),
        "pre_norm": st.booleans(),
        "final_norm": st.booleans(),
        "norm": st.sampled_from(["layer", "rms"]),
        "bias": st.booleans(),
    },
)


@settings(max_examples=30, deadline=None)
@given(options=GPTS, dtype=st.sampled_from(FLOATS))
def test_gpt_is_loaded_as_it_was_saved(options, dtype, folder):
    assert_survives_round_trip(small(**options).to(dtype), folder / "gpt", torch.tensor([[1, 2, 3, 4, 5]]))


@settings(max_examples=20, deadline=None)
@given(options=TRANSFORMERS, dtype=st.sampled_from(FLOATS))
def test_transformer_is_loaded_as_it_was_saved(options, dtype, folder):
    options = {"shared": options.get("target_vocabulary") is None} | options
    if options["shared"]:
        options.pop("target_vocabulary", None)
    shape = {"vocabulary": 11, "max_positions": 8, "d_model": 8, "encoder_blocks": 1, "decoder_blocks": 2, "heads": 2}
    model = Transformer(TransformerConfig(**shape, **options)).to(dtype)
    assert_survives_round_trip(model, folder / "transformer", torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))


def test_synthesizer_is_loaded_as_it_was_saved(folder):
    assert_survives_round_trip(
        small(attention="synthesizer", synthesizer_block=6), folder / "synthesizer", torch.tensor([[1, 2]])
    )


@pytest.mark.parametrize("pooling", ["mean", "cls", "bert"])
@pytest.mark.parametrize("types", [0, 2])
def test_encoder_is_loaded_as_it_was_saved(folder, pooling, types):
    config = EncoderConfig(vocabulary=11, max_positions=8, types=types, d_model=8, blocks=2, heads=2, pooling=pooling)
    assert_survives_round_trip(Encoder(config), folder / "encoder", torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@pytest.mark.parametrize("both_ways", [True, False])
def test_luong_is_loaded_as_it_was_saved(folder, score, both_ways):
    config = LuongConfig(
        vocabulary=11,
        target_vocabulary=13,
        d_embedding=6,
        d_model=8,
        bidirectional=both_ways,
        score=score,
        input_feeding=not both_ways,
    )
    assert_survives_round_trip(
        LuongTranslator(config), folder / "luong", torch.tensor([[1, 2, 3]]), torch.tensor([[4, 12]])
    )


def assert_survives_round_trip(model, place, *inputs):
    model.special = Special(start=1, end=(2, 3), pad=None)
    model.save(place)
    again = ts.load(place)
    assert type(again) is type(model)
    assert again.config == model.config
    assert again.special == model.special
    assert again.tokenizer is None
    assert same(again, model)
    assert torch.equal(again(*inputs), model.eval()(*inputs))


def test_the_tokenizer_is_saved_with_the_model(tmp_path):
    model = small()
    model.tokenizer = words()
    model.save(tmp_path / "saved")
    again = ts.load(tmp_path / "saved").tokenizer
    assert again.to_str() == model.tokenizer.to_str()
    assert again.encode("what is this").ids == [0, 1, 2]


def test_nan_and_infinity_are_saved(tmp_path):
    model = small()
    with torch.no_grad():
        model.norm.weight[:3] = torch.tensor([torch.nan, torch.inf, -0.0])
    model.save(tmp_path / "saved")
    again = ts.load(tmp_path / "saved").norm.weight
    assert torch.equal(again.view(torch.int32), model.norm.weight.view(torch.int32))


def test_mixed_dtypes_stay_mixed(tmp_path):
    model = small()
    model.norm.double()
    model.save(tmp_path / "saved")
    assert same(ts.load(tmp_path / "saved"), model)


def test_loaded_in_another_dtype(folder):
    model = ts.load(folder / "files0" / "saved", dtype=torch.bfloat16)
    kept = ts.load(folder / "files0" / "saved")
    assert same(model, kept.to(torch.bfloat16))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_loaded_on_another_device(folder):
    assert all(p.is_meta for p in ts.load(folder / "files0" / "saved", device="meta").parameters())


def test_a_loaded_model_owns_its_weights(tmp_path):
    """They are no view of the file: the model can be trained, and the file can be deleted."""
    small().save(tmp_path / "saved")
    model, before = ts.load(tmp_path / "saved"), ts.load(tmp_path / "saved")
    contents = (tmp_path / "saved" / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == contents
    with (tmp_path / "saved" / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    assert all(torch.equal(a, b + 1.0) for a, b in zip(model.parameters(), before.parameters(), strict=True))


# ------------------------------------------------------------------------------------------------------ broken files


def loads_or_says_why(place):
    """Load a folder, and accept a LoadError of one sentence; any other exception fails the test."""
    try:
        return ts.load(place)
    except ts.LoadError:
        return None


def broken(whole, at, change):
    """Change one byte, or truncate the file there."""
    at %= len(whole)
    if change is None:
        return whole[:at]
    return whole[:at] + bytes([(whole[at] + change) % 256]) + whole[at + 1 :]


BREAKS = {"at": st.integers(0, 10**6), "change": st.none() | st.integers(1, 255)}


@pytest.fixture(scope="module")
def victim(folder):
    shutil.copytree(folder / "files0" / "saved", folder / "victim")
    return folder / "victim"


@settings(max_examples=300, deadline=None)
@given(**BREAKS)
def test_a_corrupted_header_is_refused_or_harmless(victim, folder, at, change):
    whole = (folder / "files0" / "saved" / "model.safetensors").read_bytes()
    header = 8 + struct.unpack_from("<Q", whole)[0]
    (victim / "model.safetensors").write_bytes(broken(whole[:header], at, change) + (whole[header:] if change else b""))
    model = loads_or_says_why(victim)
    assert model is None or same(model, ts.load(folder / "files0" / "saved"))
    shutil.copy(folder / "files0" / "saved" / "model.safetensors", victim)


@settings(max_examples=150, deadline=None)
@given(**BREAKS)
def test_a_corrupted_config_is_refused_or_describes_another_model(victim, folder, at, change):
    whole = (folder / "files0" / "saved" / "config.json").read_bytes()
    (victim / "config.json").write_bytes(broken(whole, at, change))
    model = loads_or_says_why(victim)
    assert model is None or isinstance(model, GPT)
    shutil.copy(folder / "files0" / "saved" / "config.json", victim)


@pytest.fixture(scope="module")
def of_llama2c(folder):
    (folder / "llama2c").mkdir()
    llama2c.write(folder / "llama2c")
    llama2c.write_tokenizer(folder / "llama2c")
    return folder / "llama2c"


@settings(max_examples=150, deadline=None)
@given(**BREAKS)
def test_a_corrupted_file_of_llama2c_is_refused_or_another_model(of_llama2c, at, change):
    file = of_llama2c / "model.bin"
    whole = file.read_bytes()
    file.write_bytes(broken(whole[:28], at, change) + whole[28:] if change else broken(whole, at, change))
    model = loads_or_says_why(of_llama2c)
    assert model is None or isinstance(model, GPT)
    file.write_bytes(whole)


@settings(max_examples=150, deadline=None)
@given(**BREAKS)
def test_a_corrupted_tokenizer_of_llama2c_is_refused_or_another_tokenizer(of_llama2c, at, change):
    file = of_llama2c / "tokenizer.bin"
    whole = file.read_bytes()
    file.write_bytes(broken(whole, at, change))
    model = loads_or_says_why(of_llama2c)
    assert model is None or isinstance(model.tokenizer, Tokenizer | None)
    file.write_bytes(whole)


# ------------------------------------------------------------------------------------------------ whole or not at all


def test_model_saved_before_is_replaced(tmp_path):
    first, second = small(), small(tied=False)
    first.tokenizer = words()
    first.save(tmp_path / "saved")
    second.save(tmp_path / "saved")
    again = ts.load(tmp_path / "saved")
    assert same(again, second)
    assert again.tokenizer is None
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["write_json", "save_tensors", "write_tokenizer"])
def test_an_interrupted_save_leaves_the_old_model(tmp_path, monkeypatch, error, step):
    first = small()
    first.save(tmp_path / "saved")

    def interrupted(*_, **__):
        raise error

    monkeypatch.setattr(f"telescope.models.model.{step}", interrupted)
    says = "^.*saved cannot be written: the disk is full; make room, and run the same command again$"
    with pytest.raises(type(error), match=says if isinstance(error, OSError) else None):
        small().save(tmp_path / "saved")
    with pytest.raises(type(error)):
        small().save(tmp_path / "new")
    monkeypatch.undo()
    assert same(ts.load(tmp_path / "saved"), first)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.fixture(params=[True, False], ids=["names are exchanged", "two renames"])
def exchange(request, monkeypatch):
    """Linux and macOS exchange two names in one step; elsewhere, and on some disks, there are two renames."""
    if not request.param:
        monkeypatch.setattr("telescope.files.atomic._exchange", lambda one, other: False)
    elif sys.platform not in ("linux", "darwin"):
        pytest.skip("this system cannot exchange two names")
    return request.param


def test_replaced_in_one_step(tmp_path, exchange):
    """A reader finds the old model or the new one at any moment, if names can be exchanged."""
    small().save(tmp_path / "saved")
    missed, done = [], threading.Event()

    def look():
        while not done.is_set():
            if not os.path.exists(tmp_path / "saved" / "model.safetensors"):
                missed.append(1)

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(20):
        small().save(tmp_path / "saved")
    done.set()
    reader.join()
    assert not (exchange and missed)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


KILLED = """
import os, signal, sys
from telescope.files import atomic
place, moment = sys.argv[1:]
def killed(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if moment == "between":
    atomic._exchange = lambda one, other: False
    rename = atomic.Path.rename
    atomic.Path.rename = lambda old, new: killed() if ".new-" in old.name else rename(old, new)
else:
    atomic.shutil.rmtree = killed
with atomic.atomic_folder(place, lambda _: None) as folder:
    (folder / "number").write_text("2")
    if moment == "before":
        killed()
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(("moment", "number"), [("before", "1"), ("after", "2"), ("between", "1")])
def test_killed_while_saving(tmp_path, moment, number):
    """The model in place is complete, and the next save to the same place removes the leftovers of the killed one."""
    place = tmp_path / "saved"
    with atomic_folder(place, lambda _: None) as folder:
        (folder / "number").write_text("1")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place), moment], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    recover(place)
    assert (place / "number").read_text() == number
    with atomic_folder(place, lambda _: None) as folder:
        (folder / "number").write_text("3")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert (place / "number").read_text() == "3"


def test_files_that_another_process_is_writing_are_kept(tmp_path):
    with atomic_folder(tmp_path / "saved", lambda _: None) as folder:
        with atomic_folder(tmp_path / "saved", lambda _: None) as second:
            (second / "number").write_text("1")
        assert folder.exists()
        (folder / "number").write_text("2")
    assert (tmp_path / "saved" / "number").read_text() == "2"


def test_old_leftovers_are_removed_where_folders_cannot_be_locked(tmp_path, monkeypatch):
    monkeypatch.setattr("telescope.files.atomic._lock", lambda folder: None)
    new, old = (tmp_path / f".saved.new-0000000{number}" for number in range(2))
    for folder in (new, old):
        folder.mkdir()
    os.utime(old, (0, 0))
    recover(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == [new]


def test_a_save_that_fails_at_the_last_moment_restores_the_old_model(tmp_path, monkeypatch):
    first = small()
    first.save(tmp_path / "saved")
    monkeypatch.setattr("telescope.files.atomic._exchange", lambda one, other: False)
    rename, path = type(tmp_path).rename, tmp_path / "saved"

    def fails(source, target):
        if target == path and ".new-" in source.name:
            raise OSError(5, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(type(tmp_path), "rename", fails)
    with pytest.raises(OSError, match="Input/output error"):
        small().save(path)
    monkeypatch.undo()
    assert same(ts.load(path), first)
    assert [place.name for place in tmp_path.iterdir()] == ["saved"]


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file.txt"
    file.write_text("old")
    file.chmod(0o600)
    with pytest.raises(ZeroDivisionError), atomic_file(file) as new:
        assert new.write_text("half of the n") / 0
    assert file.read_text() == "old"
    with atomic_file(file) as new:
        new.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    says = r"nowhere/file\.txt cannot be written: No such file or directory"
    with pytest.raises(WriteError, match=says), atomic_file(tmp_path / "nowhere" / "file.txt") as new:
        new.write_text("new")
    assert [place.name for place in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such pipes")
def test_a_pipe_is_written_where_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    with atomic_file(tmp_path / "pipe") as new:
        new.write_text("new")
    reader.join()
    assert read == ["new"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"notes holds thesis.tex, which would be lost"):
        small().save(tmp_path / "notes")
    (tmp_path / "notes" / "thesis.tex").unlink()
    (tmp_path / "notes" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"notes holds a model that Telescope did not write"):
        small().save(tmp_path / "notes")
    small().save(tmp_path / "ours")
    (tmp_path / "ours" / "diary.txt").write_text("today")
    with pytest.raises(ValueError, match=r"ours holds diary.txt, which would be lost"):
        small().save(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"diary.txt is a file; a model is saved as a folder"):
        small().save(tmp_path / "ours" / "diary.txt")
    assert (tmp_path / "ours" / "diary.txt").read_text() == "today"


def test_empty_folder_and_folders_above_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    small().save(tmp_path / "empty")
    small().save(tmp_path / "a" / "b" / "c")
    assert ts.load(tmp_path / "empty").config == ts.load(tmp_path / "a" / "b" / "c").config


def test_link_to_a_folder_stays_a_link(tmp_path):
    small().save(tmp_path / "first")
    (tmp_path / "latest").symlink_to(tmp_path / "first")
    second = small()
    second.save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert same(ts.load(tmp_path / "first"), second)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(ValueError, match="its links go in a circle"):
        second.save(tmp_path / "circle")


def test_permissions_of_files_follow_the_folder(tmp_path):
    small().save(tmp_path / "saved")
    readable = (tmp_path / "saved").stat().st_mode & 0o444
    assert all(file.stat().st_mode & 0o777 == readable | 0o200 for file in (tmp_path / "saved").iterdir())


# --------------------------------------------------------------------------------------- models that are more than this


def test_a_custom_attention_is_not_exported(tmp_path):
    model = GPT(small().config, attention=ts.Attention(mask=ts.causal, softcap=30.0))
    with pytest.raises(ValueError, match=r"attention is .*softcap=30.0.* by its config"):
        ts.export(model, tmp_path / "saved")
    model.blocks[1].self_attention.attention = ts.Attention(mask=ts.causal)  # not that of all blocks any more
    with pytest.raises(ValueError, match=r"blocks.1.self_attention.attention is .* by its config, .*softcap=30.0"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_model_that_differs_from_its_config_is_not_saved(tmp_path):
    model = small()
    model.more = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"\"more\..*\" is not what its config describes"):
        model.save(tmp_path / "saved")
    model = small()
    model.embedding = torch.nn.Embedding(12, 8)
    with pytest.raises(ValueError, match=r"\"embedding.weight\" has shape \[12, 8\]"):
        model.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"\"embedding.weight\" has no numbers"):
        small().to("meta").save(tmp_path / "saved")

    class Mine(GPT):
        pass

    with pytest.raises(TypeError, match="Mine is not a model that can be loaded again; there are Encoder, GPT"):
        Mine().save(tmp_path / "saved")
    model = small()
    model.tokenizer = "words"
    with pytest.raises(TypeError, match=r"model.tokenizer is a str; a tokenizers.Tokenizer can be saved"):
        model.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
