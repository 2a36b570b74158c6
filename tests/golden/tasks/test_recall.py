"""The recall task as its hand-out states it: characters, spans, questions, and the count of each."""

from pathlib import Path

import pytest
import torch

from support.needs import need_data
from telescope.tasks.learning.recall import (
    CutSpans,
    Lines,
    RecallRecipe,
    corrupt,
    draw_spans,
    encode,
    encode_questions,
    vocabulary,
)
from telescope.tasks.learning.train import read
from telescope.text.corpora import TextPair
from telescope.training import IGNORE, Training

RECIPES = Path(__file__).parents[3] / "recipes"
PEOPLE = ["Khatchig Mouradian is a writer born in Lebanon .", "Where was ?"]
TOKENS = vocabulary(PEOPLE)


def text(ids):
    return "".join("□" if i == IGNORE else TOKENS.id_to_token(i) for i in ids.tolist())


def test_characters_come_after_the_two_special_tokens():
    tokens = vocabulary(["bad", "cab"])
    assert tokens.get_vocab() == {"□": 0, "⁇": 1, "\n": 2, "a": 3, "b": 4, "c": 5, "d": 6}
    assert encode(tokens, ["cab⁇\n□"]) == [[5, 3, 4, 1, 2, 0]]
    assert tokens.decode([5, 3, 4, 1, 2, 0]) == "cab\n"  # the two stand for no character


def test_a_span_is_moved_to_the_end():
    line = torch.tensor(encode(TOKENS, ["Khatchig Mouradian is"]))

    def cut(kept, taken, start):
        numbers = (torch.tensor([number]) for number in (kept, taken, start))
        return text(corrupt(line, CutSpans(*numbers), 26)[0])

    assert cut(21, 5, 9) == "Khatchig ⁇dian is⁇Moura□□□"
    assert cut(21, 5, 0) == "⁇hig Mouradian is⁇Khatc□□□"
    assert cut(21, 5, 16) == "Khatchig Mouradi⁇⁇an is□□□"
    assert cut(8, 2, 3) == "Kha⁇hig⁇tc" + 16 * "□"
    assert cut(4, 1, 3) == "Kha⁇⁇t" + 20 * "□"


def test_three_random_numbers_determine_a_span():
    lengths, half = torch.tensor([300, 60, 300, 300]), 0.5
    chances = torch.tensor([[0.0, 1.0, half, 1.0], [0.0, 0.0, half, 1.0], [0.0, 1.0, half, 1.0]]).double()
    kept, taken, start = draw_spans(lengths, chances.clamp(max=1 - 1e-9), longest=112)
    assert kept.tolist() == [4, 60, 58, 112]
    assert taken.tolist() == [1, 1, 15, 55]  # of 58 it is 1 to 28, so 15 is in the middle
    assert start.tolist() == [0, 59, 22, 57]


def test_the_targets_of_a_question_are_its_answer():
    pairs = [TextPair("Where was Moura born?", ("Lebanon",)), TextPair("Where was Khatchig born?", ("Lebanon",))]
    (batch,) = encode_questions(TOKENS, pairs).batches(Training(epochs=1, rows=3), None)
    assert [text(row) for row in batch.ids[:2]] == [
        "Where was Moura born?⁇Lebanon⁇□□",
        "Where was Khatchig born?⁇Lebanon",
    ]
    assert [text(row) for row in batch.targets] == [
        "□□□□□□□□□□□□□□□□□□□□⁇Lebanon⁇□□□",
        "□□□□□□□□□□□□□□□□□□□□□□□⁇Lebanon⁇",
        "□" * 32,  # fills up the batch
    ]


def test_the_targets_of_a_line_are_all_its_characters():
    (batch,) = Lines(encode(TOKENS, PEOPLE), block=64).batches(Training(epochs=1, rows=2), 7)
    assert batch.ids.shape == batch.targets.shape == (2, 63)
    for ids, targets in zip(batch.ids, batch.targets, strict=True):
        assert text(ids)[1:] == text(targets)[:-1]


def test_answers_must_match_exactly():
    answered = [("Paris", "Paris"), ("paris", "Paris"), ("Paris ", "Paris"), ("", "Paris")]
    answers = [{"question": "?", "answer": answer, "places": [place]} for answer, place in answered]
    assert RecallRecipe.score(None, answers) == {"accuracy": 25.0}


@pytest.mark.parametrize(
    ("name", "parameters", "steps"),
    [
        ("none", 3_323_392, [600]),
        ("causal", 3_323_392, [14_950, 80]),
        ("synthesizer", 3_076_988, [14_950, 80]),
        ("rotary", 3_323_392 - 128 * 256, [14_950, 80]),
    ],
)
def test_the_recipes_on_the_files_of_the_course(name, parameters, steps):
    """2,937 lines of 254 characters, 2,000 questions: 23 batches of 128 and 8 of 256."""
    recipe = read(RECIPES / f"recall-{name}.toml")
    work = recipe.prepare(need_data("cs224n_a5").parent, None)
    assert sum(parameter.numel() for parameter in work.model.parameters()) == parameters
    assert work.model.config.vocabulary == 256
    assert [work.model.tokenizer.id_to_token(i) for i in range(5)] == ["□", "⁇", "\n", " ", "!"]
    sizes = {stage: len(plan.data.batches(plan.settings, 0)) for stage, plan in work.stages.items()}
    assert sizes == {"pretraining": 23, "training": 8} if len(steps) == 2 else {"training": 8}
    assert [plan.settings.epochs * sizes[stage] for stage, plan in work.stages.items()] == steps
    widths = [plan.data.batches(plan.settings, 0)[0].ids.shape for plan in work.stages.values()]
    assert widths == [(128, 127), (256, 69)][-len(steps) :]
