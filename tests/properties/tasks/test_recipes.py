"""Every recipe of the repository parses, trains, resumes, and is evaluated from its folder."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support import corpora
from support.recipes import FILES, quiet, small
from telescope.tasks.learning.evaluate import Evaluation, evaluate, predict, score, spread
from telescope.tasks.learning.train import override, read, train
from telescope.training import Logged, Validated

NAMES = [file.stem for file in FILES]
every_recipe = pytest.mark.parametrize("file", FILES, ids=NAMES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return corpora.make(tmp_path_factory.mktemp("data"))


def test_every_result_has_a_recipe():
    measured = ["multi30k-de-en", "multi30k-luong", "multi30k-tiny", "samsum", "shakespeare-char"]
    shipped = ["induction", "shakespeare", "summarizer", "translator-en-de"]
    assert sorted([*measured, *shipped]) == sorted(NAMES)


@every_recipe
def test_a_recipe_survives_a_round_trip(file, tmp_path):
    recipe = read(file)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert read(tmp_path / "recipe.toml") == recipe
    assert recipe.name == file.stem
    assert file.read_text().startswith("# ")


@every_recipe
def test_two_steps_and_an_evaluation(file, made, tmp_path):
    events, recipe = [], small(read(file))
    model = train(recipe, tmp_path / "run", data=made, report=events.append)
    losses = [event.loss for event in events if isinstance(event, Logged)]
    stages = 1 if getattr(recipe, "pretraining", None) is None else 2
    assert len(losses) == 2 * stages
    assert all(0 < loss < 12 for loss in losses)
    validated = [event.metrics for event in events if isinstance(event, Validated)]
    assert len(validated) == 1

    loaded = ts.load(tmp_path / "run")
    assert loaded.config == model.config
    for name, tensor in model.state_dict().items():
        assert_close(loaded.state_dict()[name], tensor, rtol=0, atol=0)
    found = evaluate(tmp_path / "run", data=made)
    assert found.recipe == file.stem
    kept = json.loads((tmp_path / "run/evaluation/test.json").read_text())
    assert kept == {"recipe": file.stem, "split": "test", "answers": found.answers, "figures": found.figures}
    assert all(0 <= figure < 200 or name == "perplexity" for name, figure in found.figures.items())


def test_the_mean_of_several_runs():
    runs = [Evaluation("mine", "test", 9, {"bleu": bleu, "chrf": 50.0}) for bleu in (40.0, 41.0, 42.0)]
    assert spread(runs) == {"bleu": (41.0, 1.0), "chrf": (50.0, 0.0)}


def test_answers_are_scored_elsewhere_to_the_same_figures(made, tmp_path):
    run = tmp_path / "run"
    train(small(read(FILES[NAMES.index("samsum")])), run, data=made, report=quiet)
    whole = evaluate(run, data=made)
    file = predict(run, data=made)
    (answer,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert answer["references"] == ["Tom won."]
    (run / "model.safetensors").unlink()  # nothing but the answers is needed
    assert score(run) == whole
    answer["prediction"] = "Tom won."
    file.write_text(json.dumps(answer) + "\n")
    assert score(run).figures == pytest.approx({"rouge1": 100, "rouge2": 100, "rougeL": 100, "chrf": 100})


def test_a_stopped_run_resumes(made, tmp_path):
    recipe = small(read(FILES[NAMES.index("multi30k-tiny")]), steps=4, save_every=2)
    whole = train(recipe, tmp_path / "whole", data=made, report=quiet)

    def stop(event):
        if isinstance(event, Logged) and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "parts", data=made, report=stop)
    assert not (tmp_path / "parts/model.safetensors").exists()
    steps = []
    parts = train(recipe, tmp_path / "parts", data=made, report=steps.append)
    assert [event.step for event in steps if isinstance(event, Logged)] == [3, 4]
    for name, tensor in whole.state_dict().items():
        assert_close(parts.state_dict()[name], tensor, rtol=0, atol=0)


def test_training_learns_four_sentences(made, tmp_path):
    """By heart: BLEU of 100, from the folder, by beam search."""
    usual = read(FILES[NAMES.index("multi30k-tiny")])
    recipe = small(usual, steps=100, tokens=256, lr=0.005, warmup=10, average=1, validate_every=100)
    one = replace(recipe.model.config, d_model=64, d_hidden=64, encoder_blocks=1, decoder_blocks=1, dropout=0.0)
    decoding = replace(recipe.decoding, longest=60)
    recipe = replace(recipe, model=replace(recipe.model, config=one), decoding=decoding)
    train(recipe, tmp_path / "run", data=made, report=quiet)
    found = evaluate(tmp_path / "run", data=made)
    assert found.figures == pytest.approx({"bleu": 100, "brevity": 1, "chrf": 100})


def test_the_seed_determines_the_first_weights(made):
    recipe = small(read(FILES[NAMES.index("shakespeare-char")]))

    def first_weights(seed):
        work = override(recipe, seed=seed).prepare(made, None)
        return work.model.embedding.weight

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


def test_overrides_reach_the_training():
    recipe = override(read(FILES[NAMES.index("multi30k-luong")]), seed=3, steps=7, watch=5)
    settings = recipe.training
    assert (settings.seed, settings.steps, settings.epochs, settings.watch_every) == (3, 7, None, 5)
    assert tomllib.loads(recipe.to_toml())["training"]["steps"] == 7


def test_full_stops_are_left_out(made):
    data = read(FILES[NAMES.index("translator-en-de")]).data
    plain = replace(data, without_stop_percent=0, also=None).read_training(made)
    bare = replace(data, without_stop_percent=100, also=None).read_training(made)
    assert bare[: len(plain)] == plain
    assert len(bare) == 2 * len(plain)
    pairs = [pair for pair in bare[len(plain) :] if pair.source == "I see 7 dogs"]
    assert [pair.targets for pair in pairs] == [("Ich sehe 7 Hunde",)]


def test_a_long_document_is_truncated_and_keeps_its_end_token(made):
    recipe = read(FILES[NAMES.index("summarizer")])
    recipe = small(replace(recipe, data=replace(recipe.data, longest=5)))
    work = recipe.prepare(made, None)
    examples = work.stages["training"].data
    batch = examples.take(examples.batches(recipe.training, 0)[0])
    whole = work.model.tokenizer.encode("Ack is like grep.\n\nIt is for 99% of uses.").ids
    assert batch.lengths.tolist()[0] == 5
    assert batch.source[0, :5].tolist() == [*whole[:4], 3]
    summary = work.model.tokenizer.encode("grep for trees").ids
    assert batch.target[0, : len(summary)].tolist() == [2, *summary[:-1]]
    assert batch.targets[0, : len(summary)].tolist() == summary


def test_regularised_tokens_and_a_pretraining_stage_with_gaps(made, tmp_path):
    file = next(file for file in FILES if file.stem == "summarizer")
    recipe = small(read(file))
    recipe = replace(recipe, pretraining=recipe.training, tokenizer=replace(recipe.tokenizer, again=2))
    work = recipe.prepare(made, None)
    assert list(work.stages) == ["pretraining", "training"]
    gaps, pairs = (stage.data for stage in work.stages.values())
    once = replace(recipe, tokenizer=replace(recipe.tokenizer, again=0)).prepare(made, None)
    assert len(pairs) == 3 * len(once.stages["training"].data)
    assert len(gaps) <= len(once.stages["training"].data)

    events = []
    train(recipe, tmp_path / "run", data=made, report=events.append)
    assert len([event for event in events if isinstance(event, Logged)]) == 4
    assert {place.name for place in (tmp_path / "run").iterdir()} >= {"pretraining", "training", "model.safetensors"}
