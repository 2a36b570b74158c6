"""How far heads look, in patches and seconds, against float64 sums over every pair by hand."""

from math import hypot, isnan

import pytest
import torch

import telescope as ts
from support.seeing import Captions, Sums, Vision, filled, vectors
from telescope import models
from telescope.measures import habits, places

KEEPS = ("summaries", "queries-keys", "steps")


def weights_of(model, x):
    """Return the weights of every block in float64, by the reference."""
    with ts.watch(model.double(), keep="steps") as recording:
        model(x.double())
    model.float()
    return {name: watched.trace().weights for name, watched in recording.items()}


def by_hand(weights, places):
    """Return (share on neighbours, mean distance) of a head; `places` has the (row, column) of each patch."""
    near = far = within = count = 0.0
    for sequence in weights:
        for i, (row, column) in places.items():
            count += 1
            for j, (other_row, other_column) in places.items():
                weight = float(sequence[i, j])
                apart = (row - other_row, column - other_column)
                within += weight
                near += weight * (max(map(abs, apart)) <= 1)
                far += weight * hypot(*apart)
    return near / count, far / within


def grid_at(first, rows, columns):
    return {first + row * columns + column: (row, column) for row in range(rows) for column in range(columns)}


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("make", [Vision, Sums])
def test_patches_behind_a_class_token(keep, make):
    model, x = filled(make()), vectors(1 + 4 * 5, batch=2)
    with ts.watch(model, keep=keep, tokens=ts.Grid(4, 5, before=["[CLS]"])) as recording:
        model(x)
    truth = weights_of(model, x)
    for head in recording.heads():
        near, far = by_hand(truth[head.layer][:, head.number], grid_at(1, 4, 5))
        assert head.neighbours == pytest.approx(near, rel=1e-5)
        assert head.patches == pytest.approx(far, rel=1e-5)
        assert isnan(head.seconds)


@pytest.mark.parametrize("keep", KEEPS)
def test_two_images_in_a_causal_text(keep):
    tokens = ts.Segments(
        ["<s>", "What"], ts.Grid(3, 3, name="image 1"), ["or"], ts.Grid(2, 6, name="image 2"), ["?", "It"]
    )
    model, x = filled(Vision(mask=ts.causal)), vectors(len(tokens))
    with ts.watch(model, keep=keep, tokens=tokens) as recording:
        model(x)
    truth = weights_of(model, x)
    for head in recording.heads():
        weights = truth[head.layer][:, head.number]
        near = far = within = 0.0
        for own in (grid_at(2, 3, 3), grid_at(12, 2, 6)):
            mass = sum(float(weights[0, i, j]) for i in own for j in own)
            share, distance = by_hand(weights, own)
            near, far, within = near + share * len(own), far + distance * mass, within + mass
        assert head.neighbours == pytest.approx(near / 21, rel=1e-5)
        assert head.patches == pytest.approx(far / within, rel=1e-5)


@pytest.mark.parametrize("keep", KEEPS)
def test_frames_in_seconds(keep):
    model, x = filled(Vision()), vectors(1 + 12)
    with ts.watch(model, keep=keep, tokens=ts.Frames(12, seconds=3.0, before=["<s>"])) as recording:
        model(x)
    truth = weights_of(model, x)
    for head in recording.heads():
        weights = truth[head.layer][0, head.number, 1:, 1:]
        apart = 0.25 * (torch.arange(12)[:, None] - torch.arange(12)).abs()
        assert head.seconds == pytest.approx(float((weights * apart).sum() / weights.sum()), rel=1e-5)
        assert isnan(head.patches)


def test_in_blocks_and_stacked_layers_nothing_changes(monkeypatch):
    """More layers are surveyed in one launch, and more weights formed than fit into one block."""
    model, x = filled(Vision(blocks=3)), 0.1 * vectors(1 + 9 * 9, batch=2)
    tokens = ts.Grid(9, 9, before=["[CLS]"])
    with ts.watch(model, tokens=tokens) as whole:
        model(x)
    monkeypatch.setattr("telescope.measures.space.BLOCK", {"cpu": 700, "cuda": 700})
    monkeypatch.setattr(places, "SMALL", {"cpu": 100})
    monkeypatch.setattr(habits, "BLOCK", {"cpu": 700, "cuda": 700})
    with ts.watch(model, tokens=tokens) as parts:
        model(x)
    truth = weights_of(model, x)
    rows = zip(whole.heads().sort("layer"), parts.heads().sort("layer"), strict=True)
    for one, other in rows:
        near, far = by_hand(truth[one.layer][:, one.number], grid_at(1, 9, 9))
        assert (one.neighbours, one.patches) == pytest.approx((near, far), rel=1e-5)
        assert (other.neighbours, other.patches) == pytest.approx((near, far), rel=1e-5)


@pytest.mark.parametrize("keep", KEEPS)
def test_some_queries_alone(keep):
    model, x = filled(Vision()), vectors(1 + 16)
    with ts.watch(model, keep=keep, queries=[0, 3, 7], tokens=ts.Grid(4, 4, before=["[CLS]"])) as recording:
        model(x)
    truth = weights_of(model, x)
    at = grid_at(1, 4, 4)
    for head in recording.heads():
        pairs = [(i, j, float(truth[head.layer][0, head.number, i, j])) for i in (3, 7) for j in at]
        apart = [hypot(at[i][0] - at[j][0], at[i][1] - at[j][1]) for i, j, _ in pairs]
        far = sum(weight * distance for (_, _, weight), distance in zip(pairs, apart, strict=True))
        assert head.patches == pytest.approx(far / sum(weight for *_, weight in pairs), rel=1e-5)


@pytest.mark.parametrize("keep", KEEPS)
def test_what_is_generated_behind_an_image_does_not_count(keep):
    model = filled(models.GPT(models.GPTConfig(vocabulary=11, d_model=8, blocks=2, heads=2))).eval()
    ids = torch.randint(11, (1, 3 + 6 + 2), generator=torch.Generator().manual_seed(0))
    tokens = ts.Segments(["<s>", "a", "b"], ts.Grid(2, 3), ["c", "d"])
    with ts.watch(model, keep=keep, tokens=tokens) as longer:
        ts.decoding.generate(model, ids, max_new_tokens=9)
    with ts.watch(model, keep=keep, tokens=tokens) as prompt:
        model(ids)
    assert longer["blocks.0"].call.size[0] > len(tokens)
    for one, other in zip(longer.heads().sort("layer"), prompt.heads().sort("layer"), strict=True):
        assert one.patches == pytest.approx(other.patches, rel=1e-5)
        assert one.neighbours == pytest.approx(other.neighbours, rel=1e-5)


def test_padding_counts_neither_as_query_nor_as_key():
    """Of two sequences the second is an image of one row less, padded."""
    x, mask = vectors(12, batch=2), ts.padding(torch.tensor([12, 9]))
    model = filled(Vision(mask=mask))
    with ts.watch(model, tokens=ts.Grid(4, 3)) as recording:
        model(x)
    truth = weights_of(model, x)
    for head in recording.heads():
        weights = truth[head.layer][:, head.number].clone()
        weights[1, 9:] = 0.0
        near = far = within = 0.0
        at = grid_at(0, 4, 3)
        for sequence in weights:
            for i, j in ((i, j) for i in at for j in at):
                apart = (at[i][0] - at[j][0], at[i][1] - at[j][1])
                within += float(sequence[i, j])
                near += float(sequence[i, j]) * (max(map(abs, apart)) <= 1)
                far += float(sequence[i, j]) * hypot(*apart)
        assert head.patches == pytest.approx(far / within, rel=1e-5)
        assert head.neighbours == pytest.approx(near / float(weights.sum()), rel=1e-5)


def test_across_two_sequences_there_is_no_distance():
    model = filled(Captions())
    with ts.watch(model, tokens=(["What", "is", "it"], ts.Grid(2, 3))) as recording:
        model(vectors(6), vectors(3, seed=1))
    heads = {head.layer: head for head in recording.heads()}
    assert heads["image"].patches > 0
    assert isnan(heads["text"].patches)
    assert isnan(heads["cross"].patches)
    assert isnan(heads["cross"].neighbours)


def test_a_recording_without_kinds_has_no_distance():
    with ts.watch(model := filled(Vision())) as recording:
        model(vectors(9))
    assert all(isnan(head.patches) and isnan(head.neighbours) for head in recording.heads())
    assert "patches" not in str(recording.heads())
