"""Habits of heads: attentions made by hand, whose every weight is known."""

from math import isnan

import pytest
import torch
from torch import Tensor, nn

import telescope as ts
from telescope.layers import Attend
from telescope.observe.heads import Head, Heads

STRONG = 40.0  # a score so much above the others takes all of the weight
N = 12
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8]])  # what followed the last 7 is 8
TEXT = {5: "The", 6: " man", 7: ",", 8: " saw"}


class Made(nn.Module):
    """Heads whose weights are what a matrix says: query i is row i of it, key j is the unit vector of j."""

    def __init__(self, *matrices: Tensor) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 2)
        self.attend = Attend()
        self.scores = torch.stack(matrices)[None]

    def forward(self, ids: Tensor) -> None:
        self.embedding(ids)
        n = ids.shape[1]
        keys = torch.eye(n).expand(1, self.scores.shape[1], n, n)
        self.attend(self.scores[..., :n, :n], keys, keys, ts.Attention(scale=1.0, mask=ts.causal))


def looks_at(where) -> Tensor:
    """The scores of a head that looks from i at where(i)."""
    scores = torch.zeros(N, N)
    for i in range(N):
        scores[i, where(i)] = STRONG
    return scores


MADE = {
    "itself": looks_at(lambda i: i),
    "previous": looks_at(lambda i: max(i - 1, 0)),
    "first": looks_at(lambda i: 0),
    "same": looks_at(lambda i: max(i - 4, 0)),
    "induction": looks_at(lambda i: i - 3 if i >= 4 else 0),
    "mixed": torch.zeros(N, N),
}


class Words:
    def decode(self, ids):
        return "".join(TEXT[token] for token in ids)


def recorded(*names, keep="summaries", ids=IDS, **options):
    model = Made(*(MADE[name] for name in names))
    with ts.watch(model, keep=keep, tokenizer=Words(), **options) as recording:
        model(ids)
    return recording


@pytest.mark.parametrize("keep", ["summaries", "queries-keys", "steps"])
def test_kinds(keep):
    heads = {head.number: head for head in recorded(*MADE, keep=keep).heads()}
    assert [heads[number].kind for number in range(len(MADE))] == list(MADE)
    assert heads[0].itself == pytest.approx(1.0)
    assert heads[1].previous == pytest.approx(1.0)
    assert heads[2].first == pytest.approx(1.0)
    assert heads[3].same == pytest.approx(8 / 11)  # of eleven that can choose, the first three have no earlier one
    assert heads[4].induction == pytest.approx(8 / 11)
    assert heads[0].spread == pytest.approx(1.0)
    assert heads[5].spread == pytest.approx(sum(range(2, 13)) / 11)  # query i looks at i + 1 keys alike


def test_punctuation_and_far():
    heads = {head.number: head for head in recorded("first", "mixed").heads()}
    assert heads[0].punctuation == pytest.approx(0.0)
    given = sum(1 / (i + 1) for j in (2, 6, 10) for i in range(j, N)) / N  # what the keys 2, 6 and 10 get
    assert heads[1].punctuation == pytest.approx(given)
    assert heads[0].far == pytest.approx(8 / 11)  # more than a quarter of twelve back


def test_without_tokens_and_without_top():
    model = Made(MADE["previous"])
    with ts.watch(model, top=0) as recording:
        model(IDS)
    (head,) = recording.heads()
    assert isnan(head.previous)
    assert isnan(head.punctuation)
    assert head.spread == pytest.approx(1.0)
    assert head.kind == "mixed"


def test_several_calls_are_measured_together():
    model = Made(MADE["previous"])
    with ts.watch(model) as recording:
        model(IDS)
        model(IDS[:, :5])
    (head,) = recording.heads()
    assert head.previous == pytest.approx(1.0)


def head(layer, number, **shares):
    usual = dict.fromkeys(("itself", "previous", "first", "same", "induction", "punctuation", "far"), 0.0)
    return Head(layer, number, shares.pop("kind", "mixed"), **(usual | {"spread": 1.0} | shares))


TABLE = Heads(
    [
        head("blocks.0.self", 0, previous=0.5, kind="previous"),
        head("blocks.0.self", 1, previous=float("nan"), spread=3.0),
        head("blocks.1.self", 0, previous=0.9, kind="previous"),
    ]
)


def test_sorting_and_choosing():
    assert [one.previous for one in TABLE.sort("previous")][:2] == [0.9, 0.5]
    assert [one.spread for one in TABLE.sort("spread", rising=True)] == [1.0, 1.0, 3.0]
    assert [(one.kind, one.previous) for one in TABLE.sort()][1:] == [("previous", 0.9), ("previous", 0.5)]
    assert len(TABLE.where(kind="previous")) == 2
    assert len(TABLE.where(previous=0.6)) == 1
    assert len(TABLE.where(layer="blocks.0")) == 2
    assert len(TABLE.where(lambda one: one.number == 1)) == 1
    assert TABLE[:2][1].number == 1
    assert TABLE.to_dict()[1]["previous"] is None
    with pytest.raises(ValueError, match='did you mean "previous"'):
        TABLE.sort("previus")
    with pytest.raises(ValueError, match='there is no habit "lookback"'):
        TABLE.where(lookback=0.5)


def test_it_prints_as_a_table():
    assert repr(TABLE[:1]).splitlines() == [
        "layer          head  kind      itself  previous  first  same  induction  punctuation  far  spread",
        "blocks.0.self     0  previous      0%       50%     0%    0%         0%           0%   0%     1.0",
    ]


def test_it_is_plotted_where_matplotlib_is(monkeypatch):
    drawn = []

    class Axes:
        def imshow(self, square):
            drawn.append(square)

        def set(self, **labels):
            drawn.append(labels)

    monkeypatch.setattr("telescope.observe.heads.import_module", lambda name: None)
    TABLE.plot("spread", axes=Axes())
    assert drawn[0][0] == [1.0, 3.0]
    assert drawn[0][1][0] == 1.0
    assert isnan(drawn[0][1][1])
    assert drawn[1]["yticklabels"] == ["blocks.0.self", "blocks.1.self"]

    def missing(name):
        raise ImportError

    monkeypatch.setattr("telescope.observe.heads.import_module", missing)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        TABLE.plot()
