"""An atlas of heads whose habits were built by hand, and of a model whose recordings can be added up by hand."""

import random
from math import isnan, log, sqrt

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import telescope as ts
from support import mapping
from support.mapping import LETTERS, Letters
from telescope.atlases import Atlas
from telescope.atlases.exact import BINS, Distribution, ExactSum, edges_table, linear_edges
from telescope.atlases.measure import CLASSES, BatchMeasures, LayerHeads
from telescope.atlases.sums import AtlasSums, group_of
from telescope.layers import MultiHeadAttention
from telescope.measures import BACK, BUCKETS, HABITS, OF_QUERIES, OF_TEXTS, ROWS

V, P = len(LETTERS), 160


class BuiltHabits(nn.Module):
    """Three attentions whose weights are set by hand: previous token, induction, and a sink at the third token.

    The residual stream is [one-hot of the token, one-hot of the position, one-hot of the token before].
    """

    def __init__(self):
        super().__init__()
        width = V + P + V
        self.embedding = nn.Embedding(V, width)
        options = {"heads": 1, "d_k": max(V, P), "bias": False, "attention": ts.Attention(scale=1.0, mask=ts.causal)}
        self.previous_attention = MultiHeadAttention(width, **options)
        self.induction_attention = MultiHeadAttention(width, **options)
        self.sink_attention = MultiHeadAttention(width, **options)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.embedding.weight[:, :V] = torch.eye(V)
        token, place, before = slice(0, V), slice(V, V + P), slice(V + P, None)
        maps = self.previous_attention.projections()
        maps["W_q"].weight[: P - 1, place] = 60.0 * torch.eye(P)[1:]  # position i asks for position i - 1
        maps["W_k"].weight[:P, place] = torch.eye(P)
        maps["W_v"].weight[:V, token] = torch.eye(V)
        self.previous_attention.W_O.weight[before, :V] = torch.eye(V)
        maps = self.induction_attention.projections()
        maps["W_q"].weight[:V, token] = 60.0 * torch.eye(V)  # a token asks for the keys that stand behind it
        maps["W_k"].weight[:V, before] = torch.eye(V)
        maps = self.sink_attention.projections()
        maps["W_q"].weight[0, token] = 60.0
        maps["W_k"].weight[0, V + 2] = 1.0

    def forward(self, ids):
        x = self.embedding(ids)
        x[:, :, V : V + P] += torch.eye(P)[: ids.shape[1]]
        self.sink_attention(x)
        x = x + self.previous_attention(x)
        return self.induction_attention(x)


@torch.no_grad()
def test_built_habits_are_found_with_their_evidence():
    texts = [*mapping.corpus(8, least=60, most=140), "a" * 60, "the quick brown fox"]
    atlas = ts.atlas(BuiltHabits(), texts, tokenizer=Letters(), length=P)
    kinds = {head.layer: head for head in atlas.heads()}
    assert {layer: head.kind for layer, head in kinds.items()} == {
        "sink": "sink",
        "previous": "previous",
        "induction": "induction",
    }
    assert kinds["previous"].previous > 0.999
    assert kinds["induction"].induction > 0.95  # a letter that is doubled follows itself
    assert kinds["sink"].sink > 0.95
    strongest, second, *_ = atlas.evidence("previous", 0, "same")  # only there is the token before always the same
    assert (strongest.text, strongest.excerpt) == (8, "a" * 48)
    assert strongest.share > 0.999 > 0.2 > second.share
    same = atlas.evidence("induction", 0, "induction")
    assert len(same) == 5
    assert all(text.share > 0.9 and text.excerpt == texts[text.text][:48] for text in same)
    assert same == sorted(same, key=lambda text: (-text.share, text.text))
    assert atlas.profile("previous", 0, "distance").shares[1] == pytest.approx(1.0)
    position = atlas.profile("sink", 0, "position")
    assert position.shares[position.labels.index("2")] > 0.95
    assert atlas.statistic("previous", 0, "logit").high == pytest.approx(60.0)
    assert "previous" in repr(atlas)


class RestsOnTheFirst(nn.Module):
    """One head made of its scores, for a text of 30 letters of which the last 5 repeat the letters 1 to 5.

    Queries that repeat give 60 % to the letter after the earlier one. All other weight goes to the first letter.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, 2)
        self.attend = ts.layers.Attend()
        self.scores = torch.zeros(1, 1, 30, 30)
        self.scores[..., 0] = 40.0
        for i in range(25, 30):
            self.scores[..., i, 0] = 40.0 + log(0.4)
            self.scores[..., i, i - 23] = 40.0 + log(0.6)

    def forward(self, ids):
        self.embedding(ids)
        keys = torch.eye(30)[None, None]
        return self.attend(self.scores, keys, keys, ts.Attention(scale=1.0, mask=ts.causal))


@torch.no_grad()
def test_a_head_that_rests_on_the_first_token_is_named_by_what_it_matches():
    atlas = ts.atlas(RestsOnTheFirst(), [LETTERS[:25] + LETTERS[1:6]], tokenizer=Letters(), length=30)
    (head,) = atlas.heads()
    assert head.first == pytest.approx((24 + 5 * 0.4) / 29, rel=1e-5)
    assert head.induction == pytest.approx(0.6, rel=1e-5)
    assert head.kind == "induction"


@torch.no_grad()
def test_shares_are_those_of_the_recordings_added_up():
    """And each text counts alone: padding, batches and shards leave no trace but rounding."""
    model, texts = mapping.tiny_gpt(), mapping.corpus(12)
    atlas = ts.atlas(model, texts, tokenizer=Letters(), batch=5)
    with ts.watch(model, tokenizer=Letters()) as recording:
        for text in texts:
            for first in range(0, len(text), 64):
                if len(text[first : first + 64]) > 1:
                    model(torch.tensor([Letters().encode(text[first : first + 64])]))
    expected = {(head.layer, head.number): head for head in recording.heads()}
    for head in atlas.heads():
        twin = expected[head.layer, head.number]
        assert head.kind == twin.kind
        for name in OF_TEXTS:
            assert getattr(head, name) == pytest.approx(getattr(twin, name), rel=1e-5, abs=1e-7, nan_ok=True), name
    calls = recording["blocks.1.self"].calls
    entropy = torch.cat([call.survey().entropy[0, 1, 1:] for call in calls]).double()
    found = atlas.statistic("blocks.1.self", 1, "entropy")
    assert found.count == len(entropy)
    assert_close(torch.tensor(found.mean), entropy.mean(), rtol=1e-6, atol=0.0, check_dtype=False)
    assert found.std == pytest.approx(float(entropy.std(correction=0)), rel=1e-4)
    assert found.low == pytest.approx(float(entropy.min()), rel=1e-4)
    assert found.high == pytest.approx(float(entropy.max()), rel=1e-5)
    wanted = torch.quantile(entropy, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64))
    assert_close(torch.tensor(found.quantiles, dtype=torch.float64), wanted, atol=16 / BINS, rtol=0.0)


@torch.no_grad()
def test_distances_and_maps_are_those_of_whole_matrices():
    """A text of 32 tokens has every query sampled, so that profile and map can be computed from its weights."""
    model, text = mapping.tiny_gpt(), mapping.corpus(1, least=40)[0][:32]
    atlas = ts.atlas(model, [text], tokenizer=Letters())
    with ts.watch(model, keep="steps") as recording:
        model(torch.tensor([Letters().encode(text)]))
    weights = recording["blocks.0.self"].trace().weights[0, 1].double()
    assert_close(atlas.map("blocks.0.self", 1), weights, atol=1e-6, rtol=0.0)
    distance = torch.arange(32)[:, None] - torch.arange(32)
    rows = weights[1:]
    shares = dict(zip(*atlas.profile("blocks.0.self", 1, "distance"), strict=True))
    for label, low, high in (("0", 0, 0), ("1", 1, 1), ("3 to 4", 3, 4), ("17 to 32", 17, 32)):
        expected = float(rows[(distance[1:] >= low) & (distance[1:] <= high)].sum() / 31)
        assert shares[label] == pytest.approx(expected, abs=1e-6), label
    received = weights.sum(0)
    classes = dict(zip(*atlas.profile("blocks.0.self", 1, "class"), strict=True))
    marks = torch.tensor([letter in ".," for letter in text])
    assert classes["punctuation"] == pytest.approx(float(received[marks].sum() / 32), abs=1e-6)


def test_exact_sums_do_not_depend_on_the_order():
    numbers = torch.randn(200, 3, dtype=torch.float64) * 10 ** torch.linspace(-6, 8, 200, dtype=torch.float64)[:, None]
    forth, back, parts = ExactSum.zeros(3), ExactSum.zeros(3), ExactSum.zeros(3)
    forth.add(numbers)
    for number in numbers.flip(0):
        back.add(number[None])
    for piece in numbers.split(37):
        other = ExactSum.zeros(3)
        other.add(piece)
        parts.merge(other)
    for sums in (back, parts):
        assert torch.equal(sums.whole, forth.whole)
        assert torch.equal(sums.fraction, forth.fraction)
    assert_close(forth.value, numbers.sum(0), rtol=1e-12, atol=1e-9)


def test_a_distribution_of_nothing_is_unknown_and_of_one_number_is_that_number():
    distribution = Distribution(edges_table([linear_edges(0.0, 1.0)]), 2)
    distribution.add(0, slice(0, 1), torch.tensor([[[[0.25, torch.nan]]]], dtype=torch.float64))
    assert distribution.count.tolist() == [[1, 0]]
    assert distribution.quantile(0.5)[0, 0] == 0.25
    assert distribution.variance[0, 0] == 0.0
    assert isnan(distribution.mean[0, 1])
    assert isnan(distribution.quantile(0.5)[0, 1])


def test_compare_ranks_what_changed():
    one, other = mapping.tiny_gpt(), mapping.tiny_gpt()
    with torch.no_grad():
        layer = other.blocks[1].self_attention
        layer.projections()["W_q"].weight[8:] *= 0.0  # head 1 of the last layer now attends by the first feature alone
        layer.projections()["W_q"].bias[8:] = 20.0
        layer.projections()["W_k"].weight[8:] = 0.0
        layer.projections()["W_k"].weight[8:, 0] = 1.0
    texts = mapping.corpus(10)
    before, after = (ts.atlas(model, texts, tokenizer=Letters()) for model in (one, other))
    changes = ts.compare(before, after)
    assert len(changes) == 4
    assert (changes[0].layer, changes[0].number) == ("blocks.1.self", 1)
    assert changes[0].errors > 3
    assert changes[0].moved > 0.05
    assert changes[1].change == 0.0
    assert ts.compare(before, before)[0].change == 0.0
    assert "blocks.1.self" in repr(changes)


def measures_of(weight, queries):
    """Return the measures of texts with one head: the weight of habit "previous", and how many queries count."""
    texts = len(weight)
    numerator = torch.zeros(texts, len(OF_TEXTS), 1, dtype=torch.float64)
    numerator[:, OF_TEXTS.index("previous"), 0] = torch.tensor(weight, dtype=torch.float64)
    denominator = torch.tensor(queries, dtype=torch.float64)[:, None, None].expand(-1, len(OF_TEXTS), 1)
    empty = torch.zeros(texts, 1, 1)
    return BatchMeasures(
        heads=slice(0, 1),
        numerator=numerator,
        denominator=denominator,
        known=denominator > 0,
        queries=dict.fromkeys(OF_QUERIES, empty),
        counted=empty > 0,
        distances=torch.zeros(texts, 1, BUCKETS),
        sampled=torch.zeros(texts),
        positions=torch.zeros(texts, 1, BACK),
        classes=torch.zeros(texts, 1, len(CLASSES)),
        map=torch.zeros(texts, 1, ROWS, ROWS),
        finite=torch.ones(texts, dtype=torch.bool),
    )


def atlas_of(weight, queries, about=None, numbers=None):
    """Return the atlas of one head over texts with these numbers."""
    sums = AtlasSums([LayerHeads("attention", (0,), False)])
    numbers = range(len(weight)) if numbers is None else numbers
    places = torch.tensor([[number, 0] for number in numbers])
    sums.add([measures_of(weight, queries)], places, [8] * len(weight), torch.zeros(len(CLASSES), dtype=torch.int64))
    rest = {"skipped": {"count": 0, "texts": []}, "read_texts": len(weight), "evidence": []}
    return Atlas(sums, about or {}, rest)


def test_errors_of_shares_are_those_of_ratios():
    """Three texts of 10, 10 and 20 queries that give 1, 3 and 8 to the token before: the share is 12 / 40 = 0.3.

    Their residuals are 1 - 3, 3 - 3 and 8 - 6, so that the error is √(3/2 · (4 + 0 + 4)) / 40.
    """
    one = atlas_of([1.0, 3.0, 8.0], [10, 10, 20])
    assert one.standard_error("previous").item() == pytest.approx(sqrt(12) / 40, rel=1e-9)
    other = atlas_of([2.0, 3.0, 10.0], [10, 10, 20])  # residuals -1.75, -0.75 and 2.5
    (change,) = ts.compare(one, other)
    assert (change.habit, change.before, change.after) == ("previous", 0.3, 0.375)
    assert change.errors == pytest.approx(3.0 / sqrt(12 + 14.8125), rel=1e-9)
    # Two sequences of one text are one observation; a text without a query that counts is none.
    cut = atlas_of([1.0, 3.0, 5.0, 3.0, 0.0], [10, 10, 12, 8, 0], numbers=[0, 1, 2, 2, 3])
    assert cut.standard_error("previous").item() == pytest.approx(sqrt(12) / 40, rel=1e-9)
    assert isnan(atlas_of([1.0], [10]).standard_error("previous").item())
    with pytest.raises(ValueError, match='there is no standard error of "entropy"'):
        one.standard_error("entropy")


@pytest.mark.parametrize("corpus", [["3 texts", "aa"], [["a.txt", 9, "aa"]]])
def test_errors_over_the_same_texts_are_those_of_the_difference(corpus):
    """The residuals of the test above differ by 0.25, -0.75 and 0.5: the error is √(3/2 · 0.875) / 40.

    By the names of their files, or by another list, the texts are not known to be the same.
    """
    same = [corpus, corpus if corpus[0] == "3 texts" else [["elsewhere.txt", 9, "aa"]]]
    one, other = (
        atlas_of(weight, [10, 10, 20], {"texts": texts})
        for weight, texts in zip(([1.0, 3.0, 8.0], [2.0, 3.0, 10.0]), same, strict=True)
    )
    (change,) = ts.compare(one, other)
    assert change.errors == pytest.approx(0.075 / (sqrt(1.5 * 0.875) / 40), rel=1e-9)
    other.about["texts"] = ["3 texts", "bb"] if corpus[0] == "3 texts" else [["a.txt", 9, "bb"]]
    (change,) = ts.compare(one, other)
    assert change.errors == pytest.approx(3.0 / sqrt(12 + 14.8125), rel=1e-9)


def test_groups_of_texts_give_the_errors_of_texts():
    """With more texts than groups, and kinds of texts that alternate: close to the error from every text."""
    draw = torch.Generator().manual_seed(3)
    queries = torch.randint(4, 400, (6400,), generator=draw).double()
    kind = torch.arange(6400) % 2 * 0.2 + 0.3
    weight = queries * (kind + 0.1 * torch.rand(6400, generator=draw))
    atlas = atlas_of(weight.tolist(), queries.tolist())
    residuals = weight - weight.sum() / queries.sum() * queries
    expected = float((6400 / 6399 * residuals.square().sum()).sqrt() / queries.sum())
    assert atlas.standard_error("previous").item() == pytest.approx(expected, rel=0.25)  # of 64 groups: about 9 %


@torch.no_grad()
def test_two_draws_of_texts_differ_by_chance():
    """One model over two draws of texts of 8 to 300 letters: changes in standard errors behave as a normal variable."""
    draw = random.Random(4)
    texts = []
    known = mapping.corpus(1, seed=2, least=140)[0].split()
    for i in range(64):  # short texts are alike; long ones repeat one word, or draw from several
        size = draw.randint(100, 300) if i % 6 == 0 else draw.randint(8, 12)
        words = draw.sample(known, draw.choice([1, 6])) if i % 6 == 0 else known[:1]
        texts.append(" ".join(draw.choices(words, k=size))[:size])

    # Of 64 texts each is a group of its own, so that one atlas has the numbers of each text: any draw can be added up.
    model = mapping.tiny_gpt(blocks=3, heads=4, d_model=32)
    whole = ts.atlas(model, texts, tokenizer=Letters()).sums
    weight, queries = whole.group_numerator.value, whole.group_denominator.value

    def drawn():
        chosen = torch.tensor(draw.choices(range(64), k=50))
        sums = AtlasSums(whole.layers)
        sums.group_numerator.add_to_rows(group_of(torch.arange(50)), weight[chosen])
        sums.group_denominator.add_to_rows(group_of(torch.arange(50)), queries[chosen])
        shares = weight[chosen] / queries[chosen]
        unweighted = (shares.nanmean(0) - shares).square().nansum(0).sqrt() / (~shares.isnan()).sum(0)
        sums.numerator.whole[: len(HABITS)] = sums.group_numerator.whole.sum(0)
        sums.numerator.fraction[: len(HABITS)] = sums.group_numerator.fraction.sum(0)
        sums.denominator.whole[: len(HABITS)] = sums.group_denominator.whole.sum(0)
        return Atlas(sums, {}, {"skipped": {"count": 0, "texts": []}, "read_texts": 50, "evidence": []}), unweighted

    scores, unweighted_scores, errors = [], [], []
    for _ in range(100):
        (one, wrong), (other, also_wrong) = drawn(), drawn()
        ratios = [atlas.sums.numerator.value / atlas.sums.denominator.value for atlas in (one, other)]
        change = (ratios[1] - ratios[0])[: len(HABITS)]
        error = torch.stack([one.standard_error(name) ** 2 + other.standard_error(name) ** 2 for name in HABITS]).sqrt()
        scores.append(change / error)
        unweighted_scores.append(change / (wrong**2 + also_wrong**2).sqrt())
        errors += [head.errors for head in ts.compare(one, other)]
    found = torch.stack(scores)
    found = found[:, found.isfinite().all(0)]
    assert found.shape[1] >= 7 * 12  # of 8 habits of 12 heads
    unweighted = torch.stack(unweighted_scores)
    unweighted = unweighted[unweighted.isfinite()]
    assert 0.8 < rms(found) < 1.25
    assert beyond(found) < 0.02
    assert sum(error > 3 for error in errors) < 0.05 * len(errors)
    assert beyond(unweighted) > 0.1  # so that the draws tell a wrong error from a right one


def rms(numbers):
    return float(numbers.square().mean().sqrt())


def beyond(numbers):
    return float((numbers.abs() > 3).double().mean())


def test_progress_is_reported_and_memory_does_not_grow_with_the_corpus():
    told = []
    model = mapping.tiny_gpt()
    texts = mapping.corpus(30)
    many = ts.atlas(model, texts, tokenizer=Letters(), shard=600, report=told.append)
    few = ts.atlas(model, texts[:10], tokenizer=Letters(), shard=600)
    sizes = [sum(tensor.nbytes for tensor in atlas.sums.tensors().values()) for atlas in (many, few)]
    assert sizes[0] == sizes[1]
    assert len(many._texts) <= 4 * 8 * 5  # heads, habits, texts of each
    assert [report.tokens for report in told] == sorted(report.tokens for report in told)
    assert told[-1].tokens == many.tokens == sum(map(len, texts)) - sum(len(text) % 64 == 1 for text in texts)
    assert told[-1].texts == 30
    assert 0.8 < told[-1].done <= 1.0
    assert 0.0 <= told[-1].seconds_left < 60.0
    assert told[-1].tokens_per_second > 0
