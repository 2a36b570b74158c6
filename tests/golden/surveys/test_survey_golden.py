"""Surveys with numbers that a hand can check, and the first sentence of the notes."""

import json
from math import log
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from telescope.surveys import ENGINES

FIGURES = json.loads((Path(__file__).parents[1] / "figures.json").read_text(encoding="utf-8"))
journey = torch.tensor(FIGURES["inputs"])[None, None]
printed = torch.tensor(FIGURES["steps"]["weights_all"]["printed"])

on_every_engine = pytest.mark.parametrize("engine", [name for name in ENGINES if name != "triton"])

# One feature: with the query 1, a key is its score. exp gives 1, 2, 5; the sums of the rows are 1, 3 and 8.
ONES = torch.ones(1, 1, 3, 1, dtype=torch.float64)
SCORES = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()[None, None, :, None]
CAUSAL = ts.Attention(scale=1.0, mask=ts.causal)
WEIGHTS = [[1, 0, 0], [1 / 3, 2 / 3, 0], [1 / 8, 2 / 8, 5 / 8]]


def survey(engine, **options):
    return ts.survey(ONES, SCORES, CAUSAL, engine=engine, **options)


def close(got, expected):
    assert_close(got, torch.tensor(expected, dtype=got.dtype), atol=1e-14, rtol=0.0)


@on_every_engine
def test_three_tokens(engine):
    seen = survey(engine, top=2)
    close(seen.lse[0, 0], [log(1), log(3), log(8)])
    close(seen.received[0, 0], [1 + 1 / 3 + 1 / 8, 2 / 3 + 2 / 8, 5 / 8])
    close(seen.entropy[0, 0], [0, log(3) - 2 / 3 * log(2), log(8) - 2 / 8 * log(2) - 5 / 8 * log(5)])
    close(seen.top.weights[0, 0], [[1, 0], [2 / 3, 1 / 3], [5 / 8, 2 / 8]])
    assert seen.top.keys[0, 0].tolist() == [[0, -1], [1, 0], [2, 1]]
    close(seen.peak.weight[0, 0], [1, 2 / 3, 5 / 8])
    assert seen.peak.key[0, 0].tolist() == [0, 1, 2]


@on_every_engine
def test_rows_and_cells_of_three_tokens(engine):
    seen = survey(engine)
    close(seen.rows(range(3))[0, 0], WEIGHTS)
    close(seen.rows(-1)[0, 0], WEIGHTS[2:])
    close(seen.rows([2, 0])[0, 0], [WEIGHTS[2], WEIGHTS[0]])
    close(seen.cell(2, 1)[0, 0], 2 / 8)
    close(seen.cell(0, 1)[0, 0], 0.0)


@on_every_engine
def test_a_map_of_three_tokens(engine):
    """Two cells of three positions are the first two and the last one: floor(i · 2 / 3) = 0, 0, 1."""
    seen = survey(engine, map=(2, 2))
    share = [[(1 + 1) / 2, 0], [3 / 8, 5 / 8]]
    close(seen.summary.map[0, 0], share)
    close(seen.map(2, 2)[0, 0], share)
    close(seen.map(2, 2, "max")[0, 0], [[1, 0], [2 / 8, 5 / 8]])
    close(seen.map(1, 3)[0, 0], [[(1 + 1 / 3 + 1 / 8) / 3, (2 / 3 + 2 / 8) / 3, 5 / 8 / 3]])


def test_borders_of_seven_queries():
    """Query i of 7 is in row i · 3 // 7: 0, 0, 0, 1, 1, 2, 2. Key j of 5 is in column j · 4 // 5: 0, 0, 1, 2, 3."""
    seen = ts.survey(torch.zeros(1, 1, 7, 2), torch.zeros(1, 1, 5, 2))
    assert seen.borders(3, 4) == ([0, 3, 5], [0, 2, 3, 4])
    assert seen.borders(7, 1) == ([0, 1, 2, 3, 4, 5, 6], [0])
    with pytest.raises(ValueError, match=r"map\(rows=8\) does not fit 7 queries; it takes 1 to 7"):
        seen.borders(8, 1)


def test_borders_of_a_recorded_map():
    """A recording of summaries has no queries and keys, and still tells what its map pools."""
    layer = ts.layers.MultiHeadAttention(8, 2)
    with ts.watch(layer, map=(3, 2)) as recording:
        layer(torch.randn(1, 7, 8))
    assert recording["attention"].survey().borders(3, 2) == ([0, 3, 5], [0, 4])


@on_every_engine
def test_segments_of_three_tokens(engine):
    """The first and the last token are one paragraph, the middle one another; there is no third."""
    seen = survey(engine)
    close(seen.map(segments=[0, 1, 0])[0, 0], [[(1 + 6 / 8) / 2, (0 + 2 / 8) / 2], [1 / 3, 2 / 3]])
    close(seen.map(segments=([0, 0, 0], [2, 0, 0]), how="max")[0, 0], [[2 / 3, 0, 1]])


@on_every_engine
def test_with_a_cache_the_last_query_is_in_the_last_segment(engine):
    seen = ts.survey(ONES[:, :, :1], SCORES, CAUSAL, engine=engine)
    close(seen.map(segments=[0, 0, 1])[0, 0], [[0, 0], [3 / 8, 5 / 8]])


@on_every_engine
def test_a_sink_takes_its_share(engine):
    """A sink of score ln 2 makes the sums 3, 5 and 10; its own share is not part of the entropy."""
    attention = ts.Attention(scale=1.0, mask=ts.causal, sink=log(2))
    seen = ts.survey(ONES, SCORES, attention, engine=engine)
    close(seen.lse[0, 0], [log(3), log(5), log(10)])
    close(seen.received[0, 0], [1 / 3 + 1 / 5 + 1 / 10, 2 / 5 + 2 / 10, 5 / 10])
    close(seen.entropy[0, 0, :1], [1 / 3 * log(3)])


@on_every_engine
def test_queries_that_see_nothing(engine):
    """Three queries and one key: only the last query is at or after it."""
    seen = ts.survey(ONES, SCORES[:, :, :1], CAUSAL, engine=engine, top=2)
    close(seen.lse[0, 0], [-torch.inf, -torch.inf, 0.0])
    close(seen.entropy[0, 0], [0.0, 0.0, 0.0])
    close(seen.received[0, 0], [1.0])
    assert seen.top.weights[0, 0].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    assert seen.top.keys[0, 0].tolist() == [[-1, -1], [-1, -1], [0, -1]]
    close(seen.rows(0)[0, 0], [[0.0]])
    close(seen.cell(0, 0)[0, 0], 0.0)
    close(seen.map(1, 1)[0, 0], [[1 / 3]])


@on_every_engine
def test_one_token(engine):
    seen = ts.survey(ONES[:, :, :1], SCORES[:, :, 1:2], CAUSAL, engine=engine, map=(1, 1), top=3)
    close(seen.lse[0, 0], [log(2)])
    close(seen.received[0, 0], [1.0])
    close(seen.entropy[0, 0], [0.0])
    assert seen.top.keys[0, 0].tolist() == [[0, -1, -1]]
    close(seen.map(1, 1)[0, 0], [[1.0]])


@on_every_engine
def test_journey_as_printed(engine):
    seen = ts.survey(journey, journey, ts.Attention(scale=1.0), top=6, engine=engine)
    assert_close(seen.rows(range(6))[0, 0], printed, atol=1e-4, rtol=0.0)
    assert_close(seen.received[0, 0], printed.sum(0), atol=3e-4, rtol=0.0)
    best, keys = printed.sort(-1, descending=True)
    assert_close(seen.top.weights[0, 0], best, atol=1e-4, rtol=0.0)
    assert seen.peak.key[0, 0].tolist() == keys[:, 0].tolist()
    assert_close(seen.entropy[0, 0], -(printed * printed.log()).sum(-1), atol=5e-4, rtol=0.0)


def test_a_survey_prints_as_one_sentence():
    assert repr(survey(None)) == (
        "Survey of softmax(mask(q·k)) v, mask = causal: 3 queries x 3 keys, batch 1, heads 1, "
        "by chunked; the top 8 of each query"
    )
