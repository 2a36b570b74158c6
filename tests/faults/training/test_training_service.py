"""A training that runs for days unattended: one run in a folder, stops on request, a log for programs, rows counted."""

import json
import os
import re
import shutil
import signal
import socket

import pytest
import torch

from support.learning import gpt, learn, losses, pairs, transformer
from telescope.files.locks import locked_folder
from telescope.models import LoadError
from telescope.tasks.learning.train import check, check_folder, read, train
from telescope.text.data_files import read_records, read_rows, read_running_text
from telescope.training import Examples, Logged, Saved, Started, Stopped, Training, TrainingError, language, read_log
from telescope.training import train as train_model
from telescope.training.processes import Processes, uses_gpu
from telescope.training.reports import format_event, json_log

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(autouse=True)
def heard_signals():
    """Undo what a shell does to a process in the background: it ignores SIGINT, and so does a training there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def data():
    return Examples(*pairs())


def in_child(work):
    """Run the work in a fork of this process, and return its exit code."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ------------------------------------------------------------------------------------------------- one run in a folder


def test_a_second_training_in_a_folder_says_who_is_first(data, tmp_path):
    refusals = []

    def train_again(event):
        if isinstance(event, Logged) and not refusals:
            with pytest.raises(ValueError, match="is in use by") as refused:
                learn(transformer(), data, tmp_path)
            refusals.append(str(refused.value))

    learn(transformer(), data, tmp_path, steps=2, on_event=train_again)
    (refusal,) = refusals
    owner = (
        rf"process {os.getpid()} on {re.escape(socket.gethostname())}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"
    )
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))} is in use by {owner}; wait until it ends, or choose another folder", refusal
    )
    assert sorted(os.listdir(tmp_path)) == ["checkpoints"]  # the lock is gone with the run


def test_the_lock_of_a_killed_process_does_not_block(data, tmp_path):
    def die():
        with locked_folder(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    learn(transformer(), data, tmp_path, steps=1)
    assert not (tmp_path / ".lock").exists()


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """A process opens the file, its owner removes the file and ends, and the process locks what has no name."""
    from telescope.files import locks

    lock_file = locks.lock_file
    removals = []

    def lock_too_late(file):
        lock = lock_file(file)
        if not removals:
            removals.append(file.unlink())
        return lock

    monkeypatch.setattr(locks, "lock_file", lock_too_late)
    with locked_folder(tmp_path), pytest.raises(ValueError, match="in use"), locked_folder(tmp_path):
        pass


def test_what_a_run_leaves_that_was_killed_at_its_start_is_accepted(tmp_path):
    recipe = read("recipes/shakespeare-char.toml")
    (tmp_path / ".lock").touch()
    (tmp_path / ".recipe.toml.new").write_text('name = "shake')
    check_folder(tmp_path, recipe)
    (tmp_path / "novel.txt").touch()
    with pytest.raises(ValueError, match=r"holds novel\.txt, and no run of a recipe"):
        check_folder(tmp_path, recipe)


# ---------------------------------------------------------------------------------------------------- stops on request


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_saves_a_checkpoint_and_the_run_goes_on_bit_by_bit(number, error, tmp_path):
    data = Examples(*pairs())
    whole, events = learn(transformer(dropout=0.2), data, tmp_path / "whole", log_every=3)
    handler = signal.getsignal(number)
    seen = []

    def ask(event):
        seen.append(event)
        if isinstance(event, Logged):
            os.kill(os.getpid(), number)

    with pytest.raises(error) as end:
        learn(transformer(dropout=0.2), data, tmp_path / "run", log_every=3, save_every=1000, on_event=ask)
    assert getattr(end.value, "code", 143) == 143
    assert signal.getsignal(number) is handler
    folder = tmp_path / "run" / "checkpoints" / "step-00000003"
    assert seen[-2:] == [Saved(3, folder), Stopped(step=3, saved=3)]

    resumed, rest = learn(transformer(dropout=0.2), data, tmp_path / "run", log_every=3)
    assert losses(rest) == {step: loss for step, loss in losses(events).items() if step > 3}
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor)


def test_a_signal_in_the_last_step_ends_the_run_too(data, tmp_path):
    """Another stage may follow, which must not begin."""

    def ask(event):
        if isinstance(event, Logged):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        learn(transformer(), data, tmp_path, steps=2, log_every=2, on_event=ask)
    _, events = learn(transformer(), data, tmp_path, steps=2, log_every=2)
    assert events[0].step == 2


def test_a_second_interrupt_stops_at_once(data, tmp_path, monkeypatch):
    """But not one that comes right after the first: torchrun passes on what the terminal has sent already."""
    monkeypatch.setattr("telescope.training.processes.monotonic", iter([0.0, 0.1, 5.0]).__next__)
    survived = []

    def ask(event):
        if isinstance(event, Logged):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                survived.append(event.step)

    with pytest.raises(KeyboardInterrupt):
        learn(transformer(), data, tmp_path, on_event=ask)
    assert survived == [1, 1]
    assert not (tmp_path / "checkpoints").exists()


def test_a_handler_of_the_program_is_left_alone(data, tmp_path):
    noticed = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noticed.append(number))
    try:
        _, events = learn(
            transformer(), data, tmp_path, steps=2, on_event=lambda _: os.kill(os.getpid(), signal.SIGTERM)
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(losses(events)) == {1, 2}
    assert set(noticed) == {signal.SIGTERM}


# ------------------------------------------------------------------------------------------------------------- the log


def test_a_run_writes_json_lines_and_a_resumed_one_appends(tmp_path, capsys):
    data = Examples(pairs()[1])
    settings = {"tokens": 64, "log_every": 1, "save_every": 2}

    def run(steps, stop_after=None):
        validations = []

        def validate(model):
            validations.append(1)
            if len(validations) == stop_after:
                raise KeyboardInterrupt
            return {"loss": float("nan") if len(validations) == 1 else 1.0}

        left_out = {"empty": 3, "too long": 12}
        asked = Training(steps=steps, validate_every=1, **settings)
        return train_model(gpt(), data, language, asked, tmp_path, validate=validate, left_out=left_out)

    with pytest.raises(KeyboardInterrupt):
        run(4, stop_after=3)
    file = tmp_path / "log.jsonl"
    with file.open("a") as opened:
        opened.write('{"event": "logged", "st')  # as a run that is killed leaves it
    assert [event["event"] for event in read_log(tmp_path)] == [
        *("started", "logged", "validated", "logged", "validated", "saved", "logged", "stopped")
    ]
    run(4)

    lines = [json.loads(line) for line in file.read_text().splitlines()]  # the half line is gone
    assert [line["step"] for line in lines if line["event"] == "started"] == [0, 2]
    assert [line["step"] for line in lines if line["event"] == "logged"] == [1, 2, 3, 3, 4]
    events = read_log(tmp_path)
    assert [event["step"] for event in events if event["event"] == "logged"] == [1, 2, 3, 4]
    first, logged = events[:2]
    assert first["left_out"] == {"empty": 3, "too long": 12}
    assert {"time", "step", "loss", "lr", "tokens_per_second"} <= logged.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", logged["time"])
    assert events[2]["metrics"]["loss"] is None  # JSON has no NaN
    assert events[-1]["event"] == "finished"
    assert events[-2]["folder"].endswith("step-00000004")
    assert "left out: 3 empty, 12 too long" in capsys.readouterr().err


def test_a_damaged_line_of_the_log_is_named(tmp_path):
    file = tmp_path / "log.jsonl"
    for damaged in ("{", "[]", '{"step": 1}', '{"event": "logged", "step": "1"}'):
        file.write_text(f'{{"event": "logged", "step": 1}}\n{damaged}\n{{"event": "logged", "step": 2}}\n')
        with pytest.raises(ValueError, match=r"log\.jsonl, line 2: is not .*; delete the line"):
            read_log(tmp_path)
    with pytest.raises(ValueError, match=r"nothing/log\.jsonl cannot be read|nothing cannot be read"):
        read_log(tmp_path / "nothing")


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r"log\.jsonl cannot be written: is a directory; .* the same command"):
        json_log(tmp_path / "log.jsonl")(Stopped(1, 0))


# ----------------------------------------------------------------------------------------------- rows that are left out


@pytest.fixture
def own_recipe(tmp_path, monkeypatch):
    """A recipe for files of one's own: 40 rows, of which two are empty and three too long; one in the validation."""
    monkeypatch.chdir(tmp_path)
    words = [(f"I see {i} dogs.", f"Ich sehe {i} Hunde.") for i in range(35)]
    long = [(f"{i} " + "very " * 60 + "long", "lang") for i in range(3)]
    for name, rows in (("train", [*words, ("a", " "), ("", "b"), *long]), ("held", [*words[:3], long[0], ("", "")])):
        lines = [json.dumps({"en": source, "de": target}) for source, target in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text("""
        task = "translate"
        data = {train = "train.jsonl", validation = "held.jsonl", source = "en", target = "de", longest = 40}
        tokenizer = {size = 300}
        model = {kind = "Transformer", d_model = 16, heads = 2, d_hidden = 16, encoder_blocks = 1, decoder_blocks = 1}
        training = {steps = 1, tokens = 256, validate_every = 5}
        decoding = {longest = 2, validated = 1}
    """)
    return read("mine.toml")


LEFT_OUT = {"empty": 2, "too long": 3, "empty in validation": 1, "too long in validation": 1}


def test_rows_that_are_left_out_are_counted_and_told(own_recipe, tmp_path, capsys):
    train(own_recipe, "run", data=tmp_path)
    assert read_log("run")[0]["left_out"] == LEFT_OUT
    said = "2 empty, 3 too long, 1 empty in validation, 1 too long in validation"
    assert f"left out: {said}   cpu" in capsys.readouterr().err
    assert f"left out    {said}" in list(check(own_recipe, data=str(tmp_path)))


def test_without_rows_left_out_nothing_is_told():
    started = Started(step=0, steps=1, parameters=1, data="1 example", device="cpu", processes=1)
    assert "left out" not in format_event(started)


def test_data_of_which_nothing_is_short_enough(own_recipe, tmp_path):
    text = (tmp_path / "mine.toml").read_text().replace("longest = 40", "longest = 3")
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ValueError, match=r"all 4 pairs are too long: a source may have 3 tokens.*allow more in"):
        train("mine.toml", "run", data=tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "place"), [("rows.jsonl", "line 2"), ("rows.json", "record 2")])
def test_a_lone_surrogate_names_its_file_and_line(name, place, tmp_path):
    rows = ['{"en": "\\ud83d\\ude00", "de": "b"}', '{"en": "c", "de": "x\\ud800y"}']  # the first is a whole character
    (tmp_path / name).write_text("\n".join(rows) if name.endswith("l") else f"[{','.join(rows)}]")
    message = rf'{re.escape(str(tmp_path / name))}, {place}: "de" has \\ud800, which is half of a character; write'
    for reading in (
        lambda: read_rows(tmp_path, name, ("en", "de")),
        lambda: read_running_text(tmp_path, name, "de"),
        lambda: list(read_records(tmp_path / name, "en", "de")),
    ):
        with pytest.raises(ValueError, match=message):
            reading()
    assert read_rows(tmp_path, name, ("en",)) == [("\U0001f600",), ("c",)]


# -------------------------------------------------------------------------------------------------- damaged checkpoints


def test_a_cut_checkpoint_says_what_to_delete(data, tmp_path):
    learn(transformer(), data, tmp_path, steps=2)
    folder = tmp_path / "checkpoints" / "step-00000002"
    state = (folder / "state.json").read_bytes()
    for cut in (b"", state[:50], b"{}"):
        (folder / "state.json").write_bytes(cut)
        with pytest.raises(LoadError, match=rf"state\.json .*; .*: delete {re.escape(str(folder))} to start anew"):
            learn(transformer(), data, tmp_path, steps=2)


def test_an_earlier_checkpoint_that_a_killed_run_left_is_removed(data, tmp_path):
    """The run was killed after its last checkpoint was written, and writes no other when it is resumed."""
    learn(transformer(), data, tmp_path, steps=2)
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(checkpoints / "step-00000002", checkpoints / "step-00000001")
    (checkpoints / ".step-00000002.new-0123abcd").mkdir()
    learn(transformer(), data, tmp_path, steps=2)
    assert os.listdir(checkpoints) == ["step-00000002"]


# ---------------------------------------------------------------------------------------------------------- the device


def test_the_gpu_is_used_unless_the_cpu_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not uses_gpu()  # `on_cpu` asks for it
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    assert uses_gpu()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started on a machine with 1 GPU; start one for each"):
        Processes()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not uses_gpu()


def test_processes_that_know_nothing_of_each_other_do_not_train(monkeypatch):
    Processes()  # a program has set up accelerate for one process
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started, but accelerate was set up for 1"):
        Processes()
