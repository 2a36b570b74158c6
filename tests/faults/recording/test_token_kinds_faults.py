"""Tokens that do not fit the sequence, and kinds that cannot be: one sentence each, and nothing named wrongly."""

import json
import re

import pytest
import torch

import telescope as ts
from support.seeing import Captions, Vision, filled, vectors
from telescope.models import LoadError

pytestmark = pytest.mark.usefixtures("as_users_run_it")

CLS = ["[CLS]"]

MADE_WRONG = {
    "no rows": (lambda: ts.Grid(0, 3), "Grid(rows=0) has no patches; it takes 1 or more"),
    "half a column": (
        lambda: ts.Grid(3, 2.5),
        "columns=2.5 is float; it takes a whole number, such as columns=1",
    ),
    "labels as one string": (
        lambda: ts.Grid(2, 2, before="[CLS]"),
        'Grid(before=...) is one string, "[CLS]"; it takes a list with a string for each position',
    ),
    "a name that is a number": (
        lambda: ts.Grid(2, 2, name=3),
        'Grid(name=3) is no text; it takes one, such as "image 1"',
    ),
    "too many": (
        lambda: ts.Grid(10**5, 10**5),
        "Grid has 10,000,000,000 tokens; at most 67,108,864 can be named",
    ),
    "no frames": (lambda: ts.Frames(0, 1.0), "Frames(0) has no frames; it takes 1 or more"),
    "no time": (
        lambda: ts.Frames(3, seconds=0),
        "seconds=0 is how long the frames last together; it takes a number above 0",
    ),
    "time without end": (
        lambda: ts.Frames(3, seconds=float("inf")),
        "seconds=inf is how long the frames last together; it takes a number above 0",
    ),
    "no parts": (lambda: ts.Segments(), "Segments() holds no tokens; give its parts, one after the other"),
    "two grids of one name": (
        lambda: ts.Segments(ts.Grid(2, 2), ["or"], ts.Grid(2, 2)),
        '2 parts of Segments have the name ""; give each its own, such as name="image 1"',
    ),
    "a part that is no list": (
        lambda: ts.Segments(["a"], 7),
        "tokens takes a list of names, a Grid, Frames or Segments, not int",
    ),
    "a patch outside": (
        lambda: ts.Grid(14, 14).find((20, 1)),
        'no query is "(20, 1)"; patches are (0, 0) to (13, 13)',
    ),
    "a patch of a text": (
        lambda: ts.Segments(["a"]).find((1, 2)),
        'no query is "(1, 2)"; there are no patches',
    ),
    "a misspelt token": (
        lambda: ts.Grid(1, 2, before=CLS).find("[CSL]"),
        'no query is "[CSL]"; did you mean "[CLS]"?',
    ),
    "a position outside": (
        lambda: ts.Grid(1, 2).find(2),
        "there is no query 2; there are 2, counted from 0 to 1 or from -2 to -1",
    ),
}


@pytest.mark.parametrize("name", MADE_WRONG)
def test_kinds_that_cannot_be(name):
    make, sentence = MADE_WRONG[name]
    with pytest.raises((TypeError, ValueError)) as problem:
        make()
    assert str(problem.value) == sentence


OF_197 = {
    "no class token": (
        ts.Grid(14, 14),
        'tokens=Grid(14, 14) has 196 tokens, 14 x 14 patches, and "blocks.0" has 197 keys; before=[...] and '
        "after=[...] name class and register tokens",
    ),
    "another size": (
        ts.Grid(16, 16, before=CLS),
        "tokens=Grid(16, 16, before=['[CLS]']) has 257 tokens, 16 x 16 patches and 1 beside them, and "
        "\"blocks.0\" has 197 keys; Grid(14, 14, before=['[CLS]']) has 197",
    ),
    "a smaller size": (
        ts.Grid(10, 10, before=CLS),
        "tokens=Grid(10, 10, before=['[CLS]']) has 101 tokens, 10 x 10 patches and 1 beside them, and "
        "\"blocks.0\" has 197 keys; Grid(14, 14, before=['[CLS]']) has 197",
    ),
    "frames": (
        ts.Frames(100, seconds=3.0, after=["</s>"]),
        "tokens=Frames(100, seconds=3, after=['</s>']) has 101 tokens, 100 frames and 1 beside them, and "
        '"blocks.0" has 197 keys',
    ),
    "one label": (["a"], 'tokens=a list of 1 labels has 1 token, and "blocks.0" has 197 keys'),
    "two sequences": (
        (["a"], ts.Grid(4, 4)),
        'tokens=(a list of 1 labels, Grid(4, 4)) have 1 and 16 tokens, and "blocks.0" reads one text of 197',
    ),
    "two of one length": (
        (ts.Grid(1, 197), ts.Grid(197, 1)),
        'tokens=(Grid(1, 197), Grid(197, 1)) both have the 197 tokens of "blocks.0"; say which are its own: '
        'tokens={"blocks.0": ...}',
    ),
    "one string": ("abc", 'tokens is one string, "abc"; it takes a list with a string for each position'),
    "a number": (5, "tokens takes a list of names, a Grid, Frames or Segments, not int"),
    "a pattern of nothing": (
        {"block.*": ts.Grid(14, 14)},
        'tokens has the key "block.*", which is no attention that is watched; did you mean "blocks.1"?',
    ),
    "a pattern that is a number": (
        {3: ts.Grid(14, 14)},
        'tokens has the key 3; its keys are patterns, such as "vision.*"',
    ),
}


def run(model, seen, **options):
    with ts.watch(model, **options) as recording:
        seen |= recording
        model(vectors(197))


@pytest.mark.parametrize("name", OF_197)
@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
def test_tokens_that_do_not_fit(name, keep):
    tokens, sentence = OF_197[name]
    model = filled(Vision())
    seen = {}
    with pytest.raises((TypeError, ValueError)) as problem:
        run(model, seen, keep=keep, tokens=tokens)
    assert str(problem.value) == sentence
    # Whatever was recorded before has no names and no distances.
    for name in seen:
        assert all(call._facts.tokens is None for call in seen[name].calls)
    # The model runs as before, and can be watched again.
    with ts.watch(model, keep=keep, tokens=ts.Grid(14, 14, before=CLS)) as again:
        model(vectors(197))
    assert again.heads()[0].patches > 0


def test_one_kind_for_two_sequences():
    model = filled(Captions())
    sentence = (
        'tokens=Grid(2, 3) names one sequence, and "cross" attends from one to another; give tokens=(query '
        "tokens, key tokens), or a dict from names of attentions to these"
    )
    watched = ts.watch(model, layers="cross", tokens=ts.Grid(2, 3))
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"), watched:
        model(vectors(6), vectors(6, seed=1))


def test_a_trace_of_another_size():
    x = torch.eye(4)[None, None]
    sentence = "tokens=Grid(3, 3) has 9 tokens, 3 x 3 patches, and there are 4 keys; Grid(2, 2) has 4"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        ts.trace(x, x, x, tokens=ts.Grid(3, 3))
    with pytest.raises(ValueError, match=r"has 6 tokens, 2 x 3 patches, and there are 4 queries"):
        ts.trace(x, x, x, tokens=(ts.Grid(2, 3), ["a"] * 4))


CHANGED = {
    "no list": (lambda file: file.update(token_kinds=7), '"token_kinds" is not a list of kinds of tokens'),
    "no kind": (lambda file: file.update(token_kinds=[{"kind": "cube"}]), "is no kind of tokens"),
    "a grid of no size": (lambda file: file["token_kinds"][0].update(rows=0), "Grid(rows=0) has no patches"),
    "a grid with more": (lambda file: file["token_kinds"][0].update(colour=0), "unexpected keyword argument 'colour'"),
    "labels of numbers": (lambda file: file["token_kinds"][0].update(before=[1]), "is no kind of tokens"),
    "a larger grid": (lambda file: file["token_kinds"][0].update(rows=3), "Grid(3, 3) has 9 tokens, and it has 6"),
    "a number too high": (lambda file: _call(file).update(kinds=[0, 4]), '"kinds" is not two of its kinds: [0, 4]'),
    "one number": (lambda file: _call(file).update(kinds=[0]), '"kinds" is not two of its kinds: [0]'),
    "segments of segments": (
        lambda file: file.update(token_kinds=[{"kind": "segments", "parts": [{"kind": "segments", "parts": []}]}]),
        "is no kind of tokens",
    ),
}


def _call(file):
    return file["attentions"][0]["calls"][0]


@pytest.mark.parametrize("name", CHANGED)
def test_a_recording_with_damaged_kinds(name, tmp_path):
    change, words = CHANGED[name]
    model = filled(Vision())
    with ts.watch(model, tokens=ts.Grid(2, 3)) as recording:
        model(vectors(6))
    recording.save(tmp_path / "seen")
    file = tmp_path / "seen" / "recording.json"
    manifest = json.loads(file.read_text())
    del manifest["crc32"]
    change(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(LoadError, match=re.escape(words)) as problem:
        ts.open(tmp_path / "seen")
    assert "\n" not in str(problem.value)
