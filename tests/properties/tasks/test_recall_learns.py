"""A small model reads about eight people and then answers where they were born; both stages are one run."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.tasks.learning.evaluate import evaluate
from telescope.tasks.learning.train import TASKS, override, read, train
from telescope.training import Finished, Logged, Started

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = ["Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hal"]
PLACES = ["Paris", "Rome", "Oslo", "Bern", "Lima", "Cairo", "Delhi", "Quito"]
COMMON = {"rows": 8, "lr": 1e-2, "warmup": 5, "beta_2": 0.95, "clip": 1.0, "log_every": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write the files of the course in small; Gus and Hal are the dev questions."""
    folder = tmp_path_factory.mktemp("data") / "cs224n_a5"
    folder.mkdir()
    known = list(zip(NAMES, PLACES, strict=True))
    lines = [f"{name}. {name} was born in {place} ." for name, place in known]
    questions = [f"Where was {name} born?\t{place}" for name, place in known]
    (folder / "wiki.txt").write_text("\n".join([*lines, "Where? Why?"]))  # as there: no newline at the end
    (folder / "birth_places_train.tsv").write_text("\n".join(questions) + "\n")
    (folder / "birth_dev.tsv").write_text("\n".join(questions[-2:]) + "\n")
    (folder / "birth_test_inputs.tsv").write_text("Where was Ada born?\n")
    return folder.parent


def recipe(pretraining, training, save_every=1000, **model):
    how = COMMON | {"save_every": save_every}
    tables = {
        "data": {"block": 64},
        "model": {"kind": "GPT", "max_positions": 64, "d_model": 32, "blocks": 1, "heads": 2, "tied": False} | model,
        "pretraining": how | {"steps": pretraining},
        "training": how | {"steps": training, "validate_every": training},
    }
    return TASKS["recall"].from_tables("small", "recall", tables)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"positions": "rotary"},
        {"attention": "synthesizer", "synthesizer_block": 63, "synthesizer_shared": True},
    ],
    ids=["causal", "rotary", "synthesizer"],
)
def test_the_trained_model_answers_correctly(how, data, tmp_path):
    events = []
    train(recipe(20, 80, **how), tmp_path, data=data, report=events.append)
    losses = [event.loss for event in events if isinstance(event, Logged)]
    assert losses[-1] < 0.1 < losses[0]
    assert [event.step for event in events if isinstance(event, Finished)] == [20, 80]
    assert evaluate(tmp_path, data=data, split="validation").figures == {"accuracy": 100.0}
    model = ts.load(tmp_path)
    assert model.special.end == (1,)
    assert ts.decoding.generate(model, "Where was Ada born?⁇", max_new_tokens=9, temperature=0)[0].text == "Paris"


@pytest.mark.parametrize("name", ["none", "causal", "synthesizer", "rotary"])
def test_each_recipe_takes_two_steps(name, data, tmp_path):
    chosen = override(read(RECIPES / f"recall-{name}.toml"), steps=2).training_with(rows=4)
    narrow = replace(chosen.model.config, d_model=16, heads=2)
    chosen = replace(chosen, model=replace(chosen.model, config=narrow))
    events = []
    train(chosen, tmp_path, data=data, report=events.append)
    stages = 1 if name == "none" else 2
    assert [event.step for event in events if isinstance(event, Finished)] == [2] * stages
    assert evaluate(tmp_path, data=data, split="validation").figures == {"accuracy": 0.0}


def test_the_command_recall_answers_questions(data, tmp_path, command, monkeypatch):
    train(recipe(2, 90), tmp_path, data=data, report=lambda event: None)
    model = ("--model", str(tmp_path))
    assert command("recall", "Ada", *model) == (0, "Paris\n", "")
    assert command("recall", "Where was Ben born?", "Ada", *model) == (0, "Rome\nParis\n", "")
    monkeypatch.setattr("sys.stdin", StringIO("Cleo\n\nDora\n"))
    assert command("recall", "-", *model) == (0, "Oslo\nBern\n", "")
    code, printed, _ = command("recall", "Emil", "--json", *model)
    assert (code, json.loads(printed)) == (0, {"question": "Where was Emil born?", "answer": "Lima"})
    code, _, complaint = command("recall", "Zoë", *model)
    assert (code, complaint) == (
        2,
        "telescope: \"Where was Zoë born?⁇\" has 'Z', which is none of the 36 characters learnt\n",
    )


def test_a_model_of_another_task_is_refused(tmp_path, command):
    ts.models.GPT(ts.models.GPTConfig(vocabulary=9, d_model=8, blocks=1, heads=1)).save(tmp_path / "other")
    code, printed, complaint = command("recall", "Ada", "--model", str(tmp_path / "other"))
    assert (code, printed) == (2, "")
    assert complaint.startswith("telescope: this model was not trained to recall")


def test_a_run_stopped_in_either_stage_resumes(data, tmp_path):
    chosen = recipe(20, 20, save_every=10)
    whole = train(chosen, tmp_path / "whole", data=data, report=lambda event: None)

    for stage, step in ((1, 5), (2, 15)):
        started = []

        def stop(event, started=started, stage=stage, step=step):
            started += [event.step] if isinstance(event, Started) else []
            if isinstance(event, Logged) and len(started) == stage and event.step == step:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(chosen, tmp_path / "broken", data=data, report=stop)
    seen = []
    model = train(chosen, tmp_path / "broken", data=data, report=seen.append)
    assert [event.step for event in seen if isinstance(event, Started)] == [20, 10]  # the first stage is done
    for name, weight in model.state_dict().items():
        assert_close(weight, whole.state_dict()[name], rtol=0.0, atol=0.0)


def test_without_pretraining_there_is_one_stage(data, tmp_path):
    chosen = recipe(2, 2)
    tables = {name: table.to_dict() for name, table in chosen.tables().items() if name != "pretraining"}
    alone = TASKS["recall"].from_tables("none", "recall", tables)
    assert alone.pretraining is None
    assert "pretraining" not in alone.to_toml()
    assert list(alone.prepare(data, None).stages) == ["training"]


def test_questions_of_the_test_are_answered_but_not_scored(data, tmp_path):
    train(recipe(2, 2), tmp_path, data=data, report=lambda event: None)
    with pytest.raises(ValueError, match="never published"):
        evaluate(tmp_path, data=data, split="test")
    (line,) = (tmp_path / "evaluation" / "test.jsonl").read_text().splitlines()
    assert json.loads(line)["question"] == "Where was Ada born?"


def test_an_epoch_is_drawn_by_seed_and_epoch_alone(data):
    stage = recipe(2, 2).prepare(data, None).stages["pretraining"]
    first, again, next_one = (stage.data.batches(stage.settings, epoch)[0].ids for epoch in (3, 3, 4))
    torch.rand(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, next_one)
