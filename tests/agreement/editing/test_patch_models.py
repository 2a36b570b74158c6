"""Telescope's own models, patched: against attention in float64 whose steps are swapped by hand; paths of heads, and
heads that are muted by recordings.
"""

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.patching import PARTS, Swap, own_steps, same
from support.watching import filled
from telescope.anatomy import Modules
from telescope.interception.telescope_models import attentions
from telescope.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    LuongConfig,
    LuongTranslator,
    Transformer,
    TransformerConfig,
)

pytestmark = pytest.mark.usefixtures("without_gradients")
IDS = torch.tensor([[1, 5, 2, 8, 3, 9], [4, 4, 7, 0, 12, 6]])
OTHER = torch.tensor([[7, 2, 2, 0, 11, 3], [4, 9, 1, 0, 5, 8]])
SOURCE, LENGTHS = IDS.flip(1)[:, :5], [5, 3]
SMALL = {"vocabulary": 13, "max_positions": 16, "d_model": 8, "heads": 4}
GROUPED = {"key_heads": 2, "positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False}
KINDS = ("GPT", "GPT, grouped", "GPT, window", "Transformer", "Encoder", "LuongTranslator", "LuongTranslator, feeding")


def make(kind, blocks=2):
    if kind == "Transformer":
        stacks = {"encoder_blocks": 2, "decoder_blocks": 2, "dropout": 0.0}
        model = Transformer(TransformerConfig(**SMALL, **stacks))
    elif kind.startswith("LuongTranslator"):
        feeding = kind.endswith("feeding")
        model = LuongTranslator(
            LuongConfig(vocabulary=13, d_embedding=5, d_model=8, dropout=0.0, input_feeding=feeding)
        )
    elif kind == "Encoder":
        model = Encoder(EncoderConfig(**SMALL, blocks=2, dropout=0.0))
    else:
        own = {"GPT": {}, "GPT, grouped": GROUPED, "GPT, window": {"window": 3}}[kind]
        model = GPT(GPTConfig(**SMALL, blocks=blocks, **own))
    return filled(model, torch.float64)


def run(model, ids=IDS, source=SOURCE):
    if isinstance(model, Transformer | LuongTranslator):
        return model(source, ids, ts.padding(LENGTHS))
    return model(ids, ts.padding([6, 4])) if isinstance(model, Encoder) else model(ids)


def by_hand(model, *swaps, **inputs):
    names = {id(attend): name for name, attend in attentions(Modules.of(model)).items()}
    with own_steps(names, *swaps) as kept:
        return run(model, **inputs), kept


def record(model, **inputs):
    with ts.watch(model, keep="steps") as recording:
        run(model, **inputs)
    return recording


def swaps_of(model, kept, what, heads):
    """Return a swap for each attention, since each has its own numbers of queries and keys; padding stays."""
    swaps = []
    for name, steps in kept.items():
        of_source = name.startswith("encoder") or "cross" in name
        lengths = [6, 4] if isinstance(model, Encoder) else LENGTHS if of_source else [99, 99]
        keys = [pair for pair in same(2, steps.keys.shape[2]) if pair[1] < lengths[pair[0]]]
        if "cross" in name:
            lengths = [99, 99]
        queries = [pair for pair in same(2, steps.queries.shape[2]) if pair[1] < lengths[pair[0]]]
        only = lambda other, name=name: other != name  # noqa: E731
        swaps.append(Swap(kept, what, heads, queries=queries, keys=keys, across=only))
    return swaps


@pytest.mark.parametrize("heads", [None, [0]], ids=["all", "one head"])
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_every_model(kind, what, heads):
    model = make(kind)
    other = {"ids": OTHER} if not isinstance(model, Transformer | LuongTranslator) else {"source": OTHER[:, :5]}
    before = run(model)
    _, kept = by_hand(model, **other)
    truth, _ = by_hand(model, *swaps_of(model, kept, what, heads))
    with ts.edit(model, ts.patch(record(model, **other), heads=heads, what=what)):
        edited = run(model)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2]) if kind == "Encoder" else slice(None)
    assert_close(edited[keep], truth[keep], rtol=1e-9, atol=1e-9)
    assert float((edited - before).abs().max()) > 1e-6
    assert torch.equal(run(model), before)


@pytest.mark.parametrize("fixed", [False, True], ids=["growing", "fixed"])
@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("kind", ["GPT, grouped", "GPT, window"])
def test_token_by_token(kind, what, fixed):
    """A prompt of three tokens and three steps; the recording has the prompt and two steps."""
    model = make(kind)

    def write(ids, steps):
        cache = model.cache(batch=2, room=9)
        parts = [model(ids[:, :3], cache=cache)]
        cache = cache.fixed() if fixed else cache
        return torch.cat(parts + [model(ids[:, i : i + 1], cache=cache) for i in range(3, 3 + steps)], 1)

    with ts.watch(model, keep="steps") as recording:
        write(OTHER, 2)
    _, kept = by_hand(model, ids=OTHER[:, :5])
    truth, _ = by_hand(model, Swap(kept, what, [1, 2], queries=same(2, 5), keys=same(2, 5)))
    with ts.edit(model, ts.patch(recording, heads=[1, 2], what=what)):
        assert_close(write(IDS, 3), truth, rtol=1e-9, atol=1e-9)


def test_a_decoder_that_feeds_its_output_back():
    """It attends once for each word, and the words count from the first of each text."""
    model = make("LuongTranslator, feeding")
    recording = record(model, source=OTHER[:, :5])
    contexts = []
    hook = model.cross_attention.attend.register_forward_hook(lambda *call: contexts.append(call[2]))
    run(model, source=OTHER[:, :5])
    hook.remove()

    def truth(words):
        count = iter(range(6))
        own = lambda module, args, output: contexts[i] if (i := next(count)) in words else output  # noqa: E731
        hook = model.cross_attention.attend.register_forward_hook(own)
        logits = run(model)
        hook.remove()
        return logits

    assert len(contexts) == 6
    for words in (range(6), [4, 5], [2]):
        edited = run_edited(model, ts.patch(recording, queries=words))
        assert_close(edited, truth(words), rtol=1e-9, atol=1e-9)
        assert not torch.equal(edited, run(model))


def run_edited(model, *edits, **inputs):
    with ts.edit(model, *edits):
        return run(model, **inputs)


def test_text_and_two_recordings():
    """Each query may come from a recording of its own."""
    model = make("GPT")
    _, kept = by_hand(model, ids=OTHER)
    _, third = by_hand(model, ids=OTHER.flip(0))
    swaps = [
        Swap(kept, "output", queries=[(row, 2, row, 2) for row in range(2)]),
        Swap(third, "output", queries=[(row, 4, row, 4) for row in range(2)]),
    ]
    truth, _ = by_hand(model, *swaps)
    edits = [
        ts.patch(record(model, ids=OTHER), queries=2),
        ts.patch(record(model, ids=OTHER.flip(0)), queries=[4]),
    ]
    assert_close(run_edited(model, *edits), truth, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("into", ["queries", "keys", "values"])
@pytest.mark.parametrize(
    ("kind", "sender", "receiver"),
    [
        ("GPT", ("blocks.0.self", 1), ("blocks.2.self", 3)),
        ("GPT, grouped", (0, 2), (1, 1)),
        ("Transformer", ("encoder.0.self", 1), ("decoder.1.cross", 2)),
        ("Transformer", ("decoder.0.cross", 3), ("decoder.1.self", 0)),
    ],
)
def test_a_path(kind, sender, receiver, into):
    """Against the same two runs by hand: everything held but the sender, and the receiver alone patched."""
    model = make(kind, blocks=3)
    other = {"source": OTHER[:, :5]} if kind == "Transformer" else {"ids": OTHER}
    inputs = (SOURCE, IDS, ts.padding(LENGTHS)) if kind == "Transformer" else IDS
    names = [*attentions(Modules.of(model))]
    source, target = (layer if isinstance(layer, str) else f"blocks.{layer}.self" for layer in (sender[0], receiver[0]))
    _, kept = by_hand(model, **other)
    expected, clean = by_hand(model)

    def whole(name, steps, side):
        padded = name.startswith("encoder") or ("cross" in name and side == "keys")
        pairs = same(2, getattr(steps[name], side).shape[2])
        return [pair for pair in pairs if not padded or pair[1] < LENGTHS[pair[0]]]

    def only(wanted):
        return lambda other: other != wanted

    # Held: every other head, of every attention.
    heads = [head for head in range(4) if head != sender[1]]
    swaps = [Swap(kept, "output", [sender[1]], queries=whole(source, kept, "queries"), across=only(source))]
    swaps += [Swap(clean, "output", heads, queries=same(2, clean[source].output.shape[2]), across=only(source))]
    for name in names:
        if name != source:
            tokens = same(2, clean[name].output.shape[2])
            swaps.append(Swap(clean, "output", queries=tokens, across=only(name)))
    _, held = by_hand(model, *swaps)
    swap = Swap(
        held,
        into,
        [receiver[1]],
        queries=whole(target, held, "queries"),
        keys=whole(target, held, "keys"),
        across=only(target),
    )
    truth, _ = by_hand(model, swap)
    edit = ts.patch.path(model, inputs, record(model, **other), sender, receiver, into)
    assert_close(run_edited(model, edit), truth, rtol=1e-9, atol=1e-9)
    # From the encoder alone, nothing reaches the queries of a decoder.
    reaches = not (source.startswith("encoder") and into == "queries")
    assert (float((truth - expected).abs().max()) > 1e-12) is reaches


# ------------------------------------------------------------------------------------ muted by recordings


def corpus(model):
    """Return a recording of three texts of different lengths, one of them a batch."""
    texts = [IDS, OTHER[:, :4], OTHER[:1]]
    with ts.watch(model, keep="steps") as recording:
        for text in texts:
            run(model, ids=text)
    return recording, texts


@pytest.mark.parametrize("times", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["GPT", "GPT, grouped"])
def test_the_mean_of_a_corpus(kind, times):
    model = make(kind)
    recording, texts = corpus(model)
    layer, heads = "blocks.0.self", [0, 3]
    rows = [by_hand(model, ids=text)[1][layer].output.transpose(1, 2).flatten(0, 1) for text in texts]
    mean = torch.cat(rows).mean(0)  # of 12 + 8 + 6 positions
    ids = OTHER.flip(0)
    _, own = by_hand(model, ids=ids)
    shrunk = own[layer].output
    shrunk = mean[None, :, None] + times * (shrunk - mean[None, :, None])
    own[layer].output = shrunk
    truth, _ = by_hand(model, Swap(own, "output", heads, layers=layer, queries=same(2, 6)), ids=ids)
    muted = ts.mute(layer, heads, by=recording, times=times)
    assert_close(run_edited(model, muted, ids=ids), truth, rtol=1e-9, atol=1e-9)


def test_padding_is_no_part_of_the_mean():
    model = make("Encoder")
    recording = record(model)
    _, kept = by_hand(model)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    name = next(iter(kept))
    mean = kept[name].output.transpose(1, 2)[real].mean(0)
    kept[name].output = mean[None, :, None].expand_as(kept[name].output)
    truth, _ = by_hand(model, Swap(kept, "output", layers=name, queries=same(2, 6)))
    edited = run_edited(model, ts.mute(name, by=recording))
    assert_close(edited[real], truth[real], rtol=1e-9, atol=1e-9)


def test_resampled_positions():
    """Each is a recorded position of the same head, drawn evenly, the same in every run, step by step too."""
    model = make("GPT, grouped")
    recording, texts = corpus(model)
    layer, head = "blocks.1.self", 2
    rows = [by_hand(model, ids=text)[1][layer].output.transpose(1, 2).flatten(0, 1) for text in texts]
    pool = torch.cat(rows)[:, head]
    edit = ts.mute(layer, head, by=ts.resample(recording, seed=3))
    seen = []

    def keep(module, args):
        seen.append(args[0].detach().clone())

    hook = model.blocks[1].self_attention.W_O.register_forward_pre_hook(keep)
    truth = run_edited(model, edit)
    cache = model.cache(batch=2, room=9)
    with ts.edit(model, edit):
        parts = [model(IDS[:, :3], cache=cache)] + [model(IDS[:, i : i + 1], cache=cache) for i in range(3, 6)]
    hook.remove()
    assert_close(torch.cat(parts, 1), truth, rtol=1e-9, atol=1e-9)
    drawn = seen[0][..., 4:6].flatten(0, 1)  # the third head, two features wide
    nearest = (drawn[:, None] - pool[None]).abs().amax(-1).min(1)
    assert float(nearest.values.max()) < 1e-9
    assert len(set(nearest.indices.tolist())) > 4
    assert not torch.equal(run_edited(model, ts.mute(layer, head, by=ts.resample(recording, seed=4))), truth)


def test_draws_are_even():
    from telescope.editing.ablation import MASK, _mix

    counts = torch.bincount((_mix(torch.arange(26_000)) & MASK) % 26, minlength=26)
    assert int(counts.min()) > 880
    assert int(counts.max()) < 1120
