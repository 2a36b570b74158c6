"""One convention: an attention of a recording has the properties of a survey, short names work, and -1 is the last."""

import gc
import weakref

import pytest
import torch

import telescope as ts
from support.watched import FAMILIES, IDS
from support.watching import KEEPS, Translator, sequence
from telescope.recording.queries_keys_call import one_head

HEADS, LAYERS, TARGET = 4, 2, 6


def recorded(**options):
    torch.manual_seed(0)
    model = Translator().double().eval()
    with torch.no_grad(), ts.watch(model, **options) as recording:
        model(sequence(5), sequence(TARGET, seed=1))
    return recording


@pytest.mark.parametrize("keep", KEEPS)
def test_an_attention_has_the_numbers_of_its_survey(keep):
    watched = recorded(keep=keep)["encoder.1"]
    survey = watched.survey()
    assert torch.equal(watched.received, survey.received)
    assert torch.equal(watched.entropy, survey.entropy)
    assert all(map(torch.equal, watched.peak, survey.peak))
    assert all(map(torch.equal, watched.top, survey.top))
    assert watched.entropy.shape[:2] == (2, HEADS)


def test_reading_an_attention_with_several_calls_is_an_error():
    model = Translator().double().eval()
    with torch.no_grad(), ts.watch(model) as recording:
        for seed in (1, 2):
            model(sequence(5, seed=seed), sequence(TARGET, seed=seed))
    with pytest.raises(ValueError, match=r"was called 2 times.*choose one: \.calls\[0\] to \.calls\[1\]"):
        _ = recording["encoder.0"].entropy


def test_a_name_is_contained_where_it_can_be_looked_up():
    recording = recorded()
    names = [*recording, "encoder.0", "encoder.1", "encoder", "decoder", "decoder.0", "encoder.2", "enc", ""]
    for name in names:
        try:
            found = recording[name]
        except KeyError:
            found = None
        assert (name in recording) == (found is not None), name
        assert recording.get(name) is found
    assert "encoder.0" in recording
    assert "decoder.0" not in recording  # holds two attentions
    assert "encoder.0" not in list(recording)  # iteration has full names alone
    assert len(list(recording)) == len(recording)


@pytest.mark.parametrize("keep", KEEPS)
def test_heads_count_from_the_last(keep):
    recording = recorded(keep=keep)
    for watched in recording.values():
        count = len(watched.call.heads)
        for number in range(count):
            assert torch.equal(watched.head(number - count).entropy, watched.head(number).entropy)
    for number in (HEADS, -HEADS - 1):
        with pytest.raises(ValueError, match=rf"no head {number} of .*kept are 0, 1, 2, 3, and -4 to -1"):
            recording["encoder.0"].head(number)


@pytest.mark.parametrize("keep", KEEPS)
def test_heads_to_watch_count_from_the_last(keep):
    """The last head of each layer: cross-attention has fewer heads here."""
    every, last = recorded(keep=keep), recorded(keep=keep, heads=-1)
    for name, watched in last.items():
        number = len(every[name].call.heads) - 1
        assert watched.call.heads == (number,)
        assert torch.allclose(watched.entropy, every[name].entropy[:, [number]])
        assert torch.equal(watched.head(-1).entropy, watched.head(number).entropy)
    assert recorded(heads=[0, -1])["encoder.0"].call.heads == (0, HEADS - 1)


@pytest.mark.parametrize(("heads", "words"), [([-5], "0 to 3 or from -4 to -1"), ([3, -1], "names a head of .* twice")])
def test_heads_to_watch_out_of_range(heads, words):
    with pytest.raises(ValueError, match=words):
        recorded(heads=heads)


def test_queries_and_layers_count_from_the_last():
    every, last = recorded(), recorded(queries=[-1], layers=-1)
    assert list(last) == [name for name in every if ".1." in name]
    for name, watched in last.items():
        assert watched.call.rows == [watched.call.size[0] - 1]
        assert torch.allclose(watched.entropy, every[name].entropy[:, :, -1:])
    for number in (LAYERS, -LAYERS - 1):
        with pytest.raises(ValueError, match=rf"layers={number} is no layer .* from 0 to 1 or from -2 to -1"):
            recorded(layers=number)


def test_one_head_of_one_sequence_counts_from_the_last():
    call = recorded(keep="queries-keys")["encoder.0"].call
    assert torch.equal(one_head(call, -1, -1).queries, one_head(call, HEADS - 1, 1).queries)
    with pytest.raises(ValueError, match=r"no sequence -3 .* 0 to 1 or from -2 to -1"):
        one_head(call, 0, -3)


def test_a_table_of_heads_counts_from_the_last():
    assert {head.number for head in recorded().heads().where(number=-1)} == {HEADS - 1, 1}  # two in cross-attention
    heads = recorded(layers="encoder.*").heads()
    assert {head.number for head in heads.where(number=-1)} == {HEADS - 1}
    assert {head.number for head in heads.where(number=[0, -2])} == {0, HEADS - 2}
    assert list(heads.where(layer=-1)) == list(heads.where(layer=LAYERS - 1))
    assert len(heads.where(number=0).where(number=-1)) == 0
    for number in (HEADS, -HEADS - 1):
        with pytest.raises(ValueError, match=f"number={number} is no head .* from 0 to 3 or from -4 to -1"):
            heads.where(number=number)


BATCH, QUERIES, KEYS = 2, 3, 5
X = torch.randn(BATCH, HEADS, KEYS, 8, generator=torch.Generator().manual_seed(0))
TRACE = ts.trace(X[:, :, :QUERIES], X, X)
SURVEY = ts.survey(X[:, :, :QUERIES], X)

CALLS = {  # call(index), the name of what is counted, and how many there are
    "trace.head": (lambda i: TRACE.head(i).weights, "head", HEADS),
    "trace.row(head=)": (lambda i: TRACE.row(0, head=i).weights, "head", HEADS),
    "trace.row(batch=)": (lambda i: TRACE.row(0, batch=i).weights, "batch", BATCH),
    "trace.row(query)": (lambda i: TRACE.row(i).weights, "query", QUERIES),
    "trace.find": (lambda i: torch.tensor(TRACE.find(i)), "query", QUERIES),
    "survey.head": (lambda i: SURVEY.head(i).received, "head", HEADS),
    "survey.rows": (lambda i: SURVEY.rows(i), "query", QUERIES),
    "survey.rows of a list": (lambda i: SURVEY.rows([0, i]), "query", QUERIES),
    "survey.cell(i, ...)": (lambda i: SURVEY.cell(i, 0), "query", QUERIES),
    "survey.cell(..., j)": (lambda j: SURVEY.cell(0, j), "key", KEYS),
}


@pytest.mark.parametrize("name", CALLS)
def test_negative_indices_count_from_the_last(name):
    call, what, count = CALLS[name]
    for number in range(count):
        assert torch.equal(call(number - count), call(number))
    for number in (count, -count - 1):
        fitting = f"counted from 0 to {count - 1} or from -{count} to -1"
        sentence = f"there is no {what} {number}; there are {count}, {fitting}"
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            call(number)


def test_an_index_into_nothing_has_no_range():
    with pytest.raises(ValueError, match=r"^there is no query 0; there is none$"):
        ts.survey(X[:, :, :0], X).cell(0, 0)


def test_a_watched_model_can_be_freed():
    model = FAMILIES["llama"].model("sdpa")
    with torch.no_grad(), ts.watch(model):
        model(IDS)
    attention = weakref.ref(model.model.layers[0].self_attn)
    del model
    gc.collect()
    assert attention() is None
