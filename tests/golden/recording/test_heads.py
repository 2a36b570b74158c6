"""Habits of heads: attentions made by hand, whose every weight is known."""

import sys
from dataclasses import replace
from math import isnan, log

import pytest
import torch
from torch import Tensor, nn

import telescope as ts
from telescope.layers import Attend
from telescope.measures import Head
from telescope.recording.heads import Heads

STRONG = 40.0  # a score so much above the others takes all of the weight
N = 12
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8]])  # what followed the last 7 is 8
TEXT = {5: "The", 6: " man", 7: ",", 8: " saw"}


class Made(nn.Module):
    """Heads with given weights: query i is row i of a matrix, key j is the unit vector of j."""

    def __init__(self, *matrices: Tensor, mask: ts.Mask = ts.causal, vocabulary: int = 9) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 2)
        self.attend, self.attention = Attend(), ts.Attention(scale=1.0, mask=mask)
        self.scores = torch.stack(matrices)[None]

    def forward(self, ids: Tensor) -> None:
        self.embedding(ids)
        n = ids.shape[1]
        keys = torch.eye(n).expand(1, self.scores.shape[1], n, n)
        self.attend(self.scores[..., :n, :n], keys, keys, self.attention)


def looks_at(where, n: int = N) -> Tensor:
    """Return the scores of a head that attends from i to where(i)."""
    scores = torch.zeros(n, n)
    for i in range(n):
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
THIRD = looks_at(lambda i: 2 if i > 1 else i)


class Words:
    def decode(self, ids):
        return "".join(TEXT[token] for token in ids)


def recorded(*names, keep="summaries", ids=IDS, **options):
    model = Made(*((MADE | {"third": THIRD})[name] for name in names))
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
    assert heads[3].same == pytest.approx(1.0)  # of the eight that have an earlier one
    assert heads[4].induction == pytest.approx(1.0)
    assert heads[0].spread == pytest.approx(1.0)
    assert heads[5].spread == pytest.approx(sum(range(2, 13)) / 11)  # query i looks at i + 1 keys alike


def test_punctuation():
    heads = {head.number: head for head in recorded("first", "mixed").heads()}
    assert heads[0].punctuation == pytest.approx(0.0)
    given = sum(1 / (i + 1) for j in (2, 6, 10) for i in range(j, N)) / N  # what the keys 2, 6 and 10 get
    assert heads[1].punctuation == pytest.approx(given)
    assert heads[1].far == 0.0  # nothing is more than 64 tokens back


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
@pytest.mark.parametrize("top", [0, 8])
def test_small_weights_add_up(keep, top):
    """A head with equal weights: none is large, and together most of the weight goes far away."""
    n = 300
    ids = torch.arange(n)[None] % 7
    model = Made(torch.zeros(n, n), looks_at(lambda i: 0, n))
    options = {"top": top} if keep == "summaries" else {}
    with ts.watch(model, keep=keep, **options) as recording:
        model(ids)
    even, first = sorted(recording.heads(), key=lambda head: head.number)
    queries = range(1, n)
    assert even.far == pytest.approx(sum(max(i - 64, 0) / (i + 1) for i in queries) / len(queries))
    assert even.first == pytest.approx(sum(1 / (i + 1) for i in queries) / len(queries))
    assert even.same == pytest.approx(sum(i // 7 / (i + 1) for i in range(7, n)) / (n - 7))
    assert even.induction == pytest.approx(
        even.same
    )  # what followed the same seven, fourteen, ... before stands one later
    assert even.kind == "far"
    assert first.far == pytest.approx((n - 65) / (n - 1))
    assert first.kind == "first"


def test_induction_counts_queries_whose_token_occurred_before():
    """A first token, 64 others, and the same 64 again: the usual test, in which the first half has nothing to copy."""
    once = torch.randperm(500, generator=torch.Generator().manual_seed(0))[:64] + 1
    ids = torch.cat([torch.zeros(1, dtype=torch.long), once, once])[None]
    model = Made(looks_at(lambda i: i - 63 if i > 64 else 0, 129), vocabulary=600)
    with ts.watch(model) as recording:
        model(ids)
    (head,) = recording.heads()
    assert head.induction == pytest.approx(1.0)
    assert head.first == pytest.approx(0.5)
    assert head.kind == "induction"


SELDOM = torch.cat([torch.arange(41), torch.arange(1, 11)])[None]  # of the 50 queries after the first token, 10 repeat


def shared_with_the_first(part, back, n=51):
    """Return the scores of a head: from the 10 repeated queries, `part` goes `back` and the rest to the first token.

    All other queries give everything to the first token.
    """
    scores = looks_at(lambda i: 0, n)
    for i in range(41, n):
        scores[i, 0] = STRONG + log(1 - part)
        scores[i, i - back] = STRONG + log(part)
    return scores


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
@pytest.mark.parametrize(("kind", "back"), [("induction", 39), ("same", 40)])
def test_a_head_that_rests_on_the_first_token_is_named_by_what_it_matches(kind, back, keep):
    """The first token gets most of all queries, 88 %, and less than the match of those that have a match."""
    model = Made(shared_with_the_first(0.6, back), vocabulary=60)
    with ts.watch(model, keep=keep) as recording:
        model(SELDOM)
    (head,) = recording.heads()
    assert head.first == pytest.approx((40 + 10 * 0.4) / 50)
    assert getattr(head, kind) == pytest.approx(0.6)
    assert head.kind == kind


@pytest.mark.parametrize("back", [39, 40])
def test_a_head_that_prefers_the_first_token_to_a_match_is_named_first(back):
    """On the queries that have a match, 55 % goes to the first token and 45 % to the match."""
    model = Made(shared_with_the_first(0.45, back), vocabulary=60)
    with ts.watch(model) as recording:
        model(SELDOM)
    (head,) = recording.heads()
    assert max(head.same, head.induction) == pytest.approx(0.45)
    assert head.kind == "first"


@pytest.mark.parametrize(
    ("kind", "ids", "key"),
    [("first", [1, 2, 1, 3, 1, 4, 1, 5], lambda i: 0), ("previous", [1, 1, 2, 2, 3, 3], lambda i: max(i - 1, 0))],
)
def test_a_position_is_not_mistaken_for_a_match(kind, ids, key):
    """The first token, or the token before, is the earlier occurrence of every repeated one."""
    model = Made(looks_at(key, len(ids)))
    with ts.watch(model) as recording:
        model(torch.tensor([ids]))
    (head,) = recording.heads()
    assert (getattr(head, kind), head.same) == pytest.approx((1.0, 1.0))
    assert head.kind == kind


def test_a_sink_besides_the_first_token():
    head = recorded("third").heads()[0]
    assert head.kind == "sink"
    assert head.sink == pytest.approx(10 / 12)  # all but the two queries that do not see it
    assert head.first == pytest.approx(0.0)
    assert recorded("first").heads()[0].sink == pytest.approx(0.0)


def test_first_is_the_first_token_of_the_text_not_of_the_window():
    """In a layer with a window of two tokens, the last queries do not see the first token."""
    model = Made(MADE["itself"], MADE["mixed"], mask=ts.causal & ts.window(3))
    with ts.watch(model, queries=range(6, N)) as recording:
        model(IDS)
    assert [head.first for head in recording.heads()] == [0.0, 0.0]
    with ts.watch(model) as recording:
        model(IDS)
    even = recording.heads().where(number=1)[0]
    assert even.first == pytest.approx((1 / 2 + 1 / 3) / 11)


def test_without_tokens_and_without_top():
    model = Made(MADE["previous"])
    with ts.watch(model, top=0) as recording:
        model.attend(model.scores, torch.eye(N)[None, None], torch.eye(N)[None, None], model.attention)
    (head,) = recording.heads()
    assert head.previous == pytest.approx(1.0)
    assert isnan(head.same)
    assert isnan(head.induction)
    assert isnan(head.punctuation)
    assert head.spread == pytest.approx(1.0)
    assert head.kind == "previous"


def test_an_old_recording_without_sums(tmp_path):
    """As an earlier version saved it: habits that need the sums are not known."""
    recording = recorded("previous", "mixed")
    del recording["attention"].call._kept["shares"]
    recording.save(tmp_path / "old")
    for head in ts.open(tmp_path / "old").heads():
        assert all(isnan(getattr(head, name)) for name in ("itself", "previous", "first", "same", "induction", "far"))
        assert head.kind == "mixed"
        assert head.spread >= 1.0
        assert head.sink >= 0.0


def test_several_calls_are_measured_together():
    model = Made(MADE["previous"])
    with ts.watch(model) as recording:
        model(IDS)
        model(IDS[:, :5])
    (head,) = recording.heads()
    assert head.previous == pytest.approx(1.0)


def head(layer, number, **shares):
    usual = dict.fromkeys(("itself", "previous", "first", "sink", "same", "induction", "punctuation", "far"), 0.0)
    return Head(layer, number, shares.pop("kind", "mixed"), **(usual | {"spread": 1.0} | shares))


TABLE = Heads(
    [
        head("blocks.0.self", 0, previous=0.5, kind="previous"),
        head("blocks.0.self", 1, previous=float("nan"), spread=3.0),
        head("blocks.1.self", 0, previous=0.9, kind="previous"),
    ]
)
DEEP = Heads([head(f"blocks.{layer}.self", number) for number in (1, 0) for layer in reversed(range(12))])


def test_sorting():
    assert [one.previous for one in TABLE.sort("previous")][:2] == [0.9, 0.5]
    assert [one.previous for one in TABLE.sort("previous", rising=True)][:2] == [0.5, 0.9]
    assert isnan(TABLE.sort("previous", rising=True)[2].previous)  # what is not known stands last
    assert [one.spread for one in TABLE.sort("spread", rising=True)] == [1.0, 1.0, 3.0]
    by_kind = [(one.kind, one.previous) for one in TABLE.sort("kind")]
    assert by_kind[1:] == [("previous", 0.9), ("previous", 0.5)]
    by_kind = [(one.kind, one.previous) for one in TABLE.sort("kind", rising=False)]
    assert by_kind[:2] == [("previous", 0.9), ("previous", 0.5)]
    assert [*TABLE.sort("previous", descending=True)][:2] == [*TABLE.sort("previous")][:2]
    assert [*TABLE.sort("previous", descending=False)][:2] == [*TABLE.sort("previous", rising=True)][:2]
    with pytest.raises(ValueError, match="rising=True and descending=True are two directions"):
        TABLE.sort("previous", rising=True, descending=True)
    with pytest.raises(ValueError, match='did you mean "previous"'):
        TABLE.sort("previus")


def test_the_most_telling_heads_come_first():
    """A clear kind, by its share; then heads that rest on the first token; then mixed ones."""
    given = [
        ("blocks.0", 0, "mixed", {"itself": 0.39}),
        ("blocks.0", 1, "first", {"first": 0.99}),
        ("blocks.1", 0, "far", {"far": 0.8}),
        ("blocks.1", 1, "previous", {"previous": 0.72}),
        ("blocks.2", 0, "previous", {"previous": 0.46, "first": 0.3}),
        ("blocks.2", 1, "induction", {"induction": 0.49}),
        ("blocks.10", 0, "sink", {"sink": 0.9}),
        ("blocks.10", 1, "induction", {"induction": 0.49}),
    ]
    heads = Heads([head(layer, number, kind=kind, **shares) for layer, number, kind, shares in reversed(given)])
    kinds = ["previous", "induction", "induction", "previous", "first", "sink", "far", "mixed"]
    assert [one.kind for one in heads.sort()] == kinds
    assert [one.layer for one in heads.sort()][1:3] == ["blocks.2", "blocks.10"]  # equal: in the order of the model
    assert [one.kind for one in heads.sort(rising=True)] == kinds[::-1]
    assert [one.kind for one in recorded(*MADE, keep="queries-keys").heads()][-1] == "mixed"


def test_a_long_table_says_which_heads_come_first():
    said = "24 heads, the most telling first, mixed ones last; [:10] are the top 10"
    assert repr(DEEP.sort()).splitlines()[-1] == said
    assert repr(DEEP.sort().where(number=0)).splitlines()[-1].startswith("12 heads, the most telling")
    for other in (DEEP, DEEP.sort("spread"), DEEP.sort()[:10], DEEP.sort()[::-1], DEEP.sort(rising=True)):
        assert "the most telling" not in repr(other)


def test_more_than_ten_layers():
    layers = [f"blocks.{layer}.self" for layer in range(12)]
    assert [one.layer for one in DEEP.sort("layer")][::2] == layers
    assert [one.number for one in DEEP.sort("layer")][:4] == [0, 1, 0, 1]
    assert [one.layer for one in DEEP.sort("layer", rising=False)][::2] == layers[::-1]
    assert [one.number for one in DEEP.sort("number")] == [0] * 12 + [1] * 12
    assert {one.layer for one in DEEP.where(layer=11)} == {"blocks.11.self"}
    assert {one.layer for one in DEEP.where(layer=-1)} == {"blocks.11.self"}
    assert {one.layer for one in DEEP.where(layer=[0, "blocks.10"])} == {"blocks.0.self", "blocks.10.self"}
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=9, d_model=8, blocks=12, heads=2))
    with ts.watch(model) as recording:
        model(IDS)
    heads = recording.heads()
    assert [(one.layer, one.number) for one in heads.sort("layer")] == [(name, i) for name in layers for i in (0, 1)]
    assert len(heads.where(layer=1)) == 2
    assert len(heads.where(kind="mixed", layer=1).where(layer=11)) == 0  # a part of a table still knows its layers


def test_dicts_have_the_digits_of_float32_and_tables_all():
    exact = replace(TABLE[0], previous=1 / 3, spread=12.3456789)
    heads = Heads([exact], TABLE.layers)
    (row,) = heads.to_dict()
    assert (row["previous"], row["spread"], row["number"]) == (0.3333333, 12.34568, exact.number)
    assert heads.columns()["previous"] == [1 / 3]


def test_where_selects_heads():
    assert len(TABLE.where(kind="previous")) == 2
    assert len(TABLE.where(kind=["previous", "mixed"])) == 3
    assert len(TABLE.where(previous=0.6)) == 1
    assert len(TABLE.where(layer="blocks.0")) == 2
    assert len(TABLE.where(layer=0)) == 2
    assert [one.number for one in TABLE.where(number=1)] == [1]
    assert [one.number for one in TABLE.where(number=0)] == [0, 0]
    assert len(TABLE.where(number=[0, 1])) == 3
    assert len(TABLE.where(kind="sink")) == 0
    assert len(TABLE.where(lambda one: one.number == 1)) == 1
    assert TABLE[:2][1].number == 1
    assert TABLE.to_dict()[1]["previous"] is None
    for options, message in {
        "lookback": ({"lookback": 0.5}, 'there is no habit "lookback"'),
        "no kind": ({"kind": "foo"}, 'there is no kind "foo"; there are itself, .*, mixed'),
        "misspelt": ({"kind": "inductoin"}, 'did you mean "induction"'),
        "no layer": ({"layer": 7}, "layer=7 is no layer of this model; they count from 0 to 1"),
        "no name": ({"layer": "block.0"}, 'layer="block.0" is no attention of this model'),
    }.values():
        with pytest.raises(ValueError, match=message):
            TABLE.where(**options)


def test_heads_print_as_a_table():
    assert repr(TABLE[:1]).splitlines() == [
        "layer          head  kind      itself  previous  first  sink  same  induction  punctuation  far  spread",
        "blocks.0.self     0  previous      0%       50%     0%    0%    0%         0%           0%   0%     1.0",
    ]


def test_plot_draws_a_picture(tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason="plots are drawn by matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = TABLE.sort("layer", rising=False).plot("spread")
    (image,) = axes.images
    assert image.get_array().filled(-1.0).tolist() == [[1.0, 3.0], [1.0, -1.0]]  # layers in the order of the model
    assert [label.get_text() for label in axes.get_yticklabels()] == ["blocks.0.self", "blocks.1.self"]
    assert image.colorbar.ax.get_ylabel() == "keys"
    axes.figure.savefig(tmp_path / "heads.png")
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
    mine = pyplot.subplots()[1]
    assert DEEP.plot("previous", axes=mine) is mine
    assert [label.get_text() for label in mine.get_yticklabels()] == [f"blocks.{layer}.self" for layer in range(12)]
    assert mine.images[0].get_clim() == (0.0, 1.0)
    pyplot.close("all")
    for habit in ("kind", "previus"):
        with pytest.raises(ValueError, match=f'there is no habit "{habit}"'):
            TABLE.plot(habit)
    with pytest.raises(ValueError, match="nothing to plot"):
        TABLE[:0].plot()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        TABLE.plot()
