"""Padding has one rule: a sentence in a padded batch has the numbers of the sentence alone.

Every public number is compared, for every kind of model at hand, with padding in front, behind and on both sides, for
texts that end early in a batch, and for prompts that are read in chunks. The sentence alone is run without padding.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch

import telescope as ts
from huggingface import LLAMA, bert, gpt, marian, numbered

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

SIDES = ("left", "right", "both")
LENGTHS = (11, 7)  # of the sentences of a batch
T5 = {
    "vocab_size": 61,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def t5():
    return numbered(transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)))


def sinking():
    """Return a Llama with one layer of a window and grouped heads."""
    options = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return numbered(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**LLAMA, **options})))


def own_gpt():
    config = ts.models.GPTConfig(vocabulary=61, d_model=24, blocks=2, heads=4, key_heads=2, positions="rotary")
    return filled(ts.models.GPT(config))


def own_encoder():
    return filled(ts.models.Encoder(ts.models.EncoderConfig(vocabulary=61, d_model=24, blocks=2, heads=3)))


def own_transformer():
    blocks = {"encoder_blocks": 2, "decoder_blocks": 2}
    return filled(ts.models.Transformer(ts.models.TransformerConfig(vocabulary=61, d_model=24, heads=3, **blocks)))


def own_luong():
    return filled(ts.models.LuongTranslator(ts.models.LuongConfig(vocabulary=61, d_model=24)))


@torch.no_grad()
def filled(model):
    random = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=random) * parameter.shape[-1] ** -0.5)
    return model.eval()


@dataclass
class Kind:
    """A kind of model, and how it is called with sentences: `sides` says where it can be padded."""

    make: Any
    sides: tuple[str, ...] = SIDES
    translates: bool = False
    own: bool = False
    has_logits: bool = True


KINDS = {
    "llama": Kind(lambda: gpt("llama")),
    "gpt2": Kind(lambda: gpt("gpt2")),
    "qwen2, window": Kind(sinking),
    "bert": Kind(lambda: bert("bert"), has_logits=False),
    "marian": Kind(lambda: marian("marian"), ("right",), translates=True),
    "t5": Kind(t5, ("right", "left"), translates=True),
    "GPT": Kind(own_gpt, own=True),
    "Encoder": Kind(own_encoder, ("right",), own=True, has_logits=False),
    "Transformer": Kind(own_transformer, ("right",), translates=True, own=True),
    "LuongTranslator": Kind(own_luong, ("right",), translates=True, own=True),
}
CASES = [(name, side) for name, kind in KINDS.items() for side in kind.sides]


@dataclass
class Padded:
    """Token ids of several sentences, and which of them are no padding."""

    ids: torch.Tensor
    keep: torch.Tensor

    def column(self, i: int) -> int:
        return int(self.keep[i].int().argmax())

    def sentence(self, i: int) -> torch.Tensor:
        return self.ids[i, self.keep[i]][None]


def padded(lengths, side, *, seed=0, pad=0, more=3):
    """Return sentences of these lengths, padded to `more` tokens beyond the longest."""
    random = torch.Generator().manual_seed(seed)
    width = max(lengths) + more
    ids = torch.full((len(lengths), width), pad)
    keep = torch.zeros(len(lengths), width, dtype=torch.bool)
    for i, length in enumerate(lengths):
        start = {"left": width - length, "right": 0, "both": (width - length) // 2}[side]
        words = torch.randint(3, 30, (length,), generator=random)
        words[length // 2 :] = words[: length - length // 2].clone()  # so that tokens occur again
        ids[i, start : start + length] = words
        keep[i, start : start + length] = True
    return Padded(ids, keep)


def arguments(kind, source, target, keep_source=None, keep_target=None):
    """Return the positional and the named arguments of a model."""
    if kind.own:
        masks = [None if keep is None else ts.padding(keep=keep) for keep in (keep_source, keep_target)]
        if kind.make in (own_luong, own_transformer) and keep_source is not None:
            masks = [ts.padding(keep.sum(1)) for keep in (keep_source, keep_target)]
        return ((source, target, *masks), {}) if kind.translates else ((source, masks[0]), {})
    named = {"input_ids": source}
    named |= {} if keep_source is None else {"attention_mask": keep_source.long()}
    if kind.translates:
        named |= {"decoder_input_ids": target}
        named |= {} if keep_target is None else {"decoder_attention_mask": keep_target.long()}
    elif keep_source is not None:  # models with learned positions count columns
        named["position_ids"] = (keep_source.long().cumsum(1) - 1).clamp(min=0)
    return (), named


class Runs:
    """A model, a padded batch and its sentences alone."""

    def __init__(self, name, side, lengths=LENGTHS):
        self.kind, self.model = KINDS[name], KINDS[name].make().double()
        self.source = padded(lengths, side)
        self.target = padded([n - 2 for n in reversed(lengths)], "right" if name != "t5" else side, seed=1, more=2)

    def batch(self):
        return arguments(self.kind, self.source.ids, self.target.ids, self.source.keep, self.target.keep)

    def alone(self, i):
        return arguments(self.kind, self.source.sentence(i), self.target.sentence(i))

    def watch(self, inputs, **options):
        args, named = inputs
        with torch.no_grad(), ts.watch(self.model, **options) as recording:
            self.model(*args, **named)
        return recording

    def sides(self, call, layer):
        """Return the padded batches that the queries and the keys of a recorded call belong to."""
        encoder = self.kind.translates and not call.across and "encoder" in layer
        queries = self.source if encoder or not self.kind.translates else self.target
        return queries, self.source if call.across else queries


def close(one, other, **where):
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-6, atol=1e-7, msg=lambda text: f"{where}: {text}")


KEEPS = ("summaries", "queries-keys")


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("name", "side"), CASES)
def test_numbers_of_queries_and_keys(name, side, keep):
    runs = Runs(name, side)
    norms = () if name == "LuongTranslator" else ("norms",)  # it has no W_O
    options = {"keep": keep, "also": ("streaming", *norms) if keep == "summaries" else norms}
    together = runs.watch(runs.batch(), **options)
    for i in range(len(LENGTHS)):
        alone = runs.watch(runs.alone(i), **options)
        for layer in alone:
            own, call = alone[layer].call, together[layer].call
            of_queries, of_keys = (part.keep[i] for part in runs.sides(call, layer))
            first = runs.sides(call, layer)[1].column(i)
            here, there = own.survey(), call.survey()
            where = {"layer": layer, "sequence": i}
            close(there.received[i][:, of_keys], here.received[0], **where)
            assert not there.received[i][:, ~of_keys].any()
            close(there.entropy[i][:, of_queries], here.entropy[0], **where)
            assert not there.entropy[i][:, ~of_queries].any()
            close(there.lse[i][:, of_queries], here.lse[0], **where)
            close(there.top.weights[i][:, of_queries], here.top.weights[0], **where)
            keys = there.top.keys[i][:, of_queries]
            assert torch.equal(torch.where(keys < 0, keys, keys - first), here.top.keys[0])
            assert (there.top.keys[i][:, ~of_queries] == -1).all()
            if norms:
                close(call.parts["norms"].tensor[i][:, of_keys], own.parts["norms"].tensor[0], **where)
            if own.streaming() is not None and not own.across:
                close(call.streaming()[i][:, of_queries], own.streaming()[0], **where)
            assert call.text_columns(i) == (_range(of_queries), _range(of_keys))


def _range(keep):
    where = keep.nonzero().flatten()
    return range(int(where[0]), int(where[-1]) + 1)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("name", "side"), CASES)
def test_heads(name, side, keep):
    """A batch of one sentence, padded: every column of heads(), with segments, equals the sentence's alone."""
    runs = Runs(name, side, lengths=LENGTHS[1:])
    options = {"keep": keep, "also": "streaming"} if keep == "summaries" else {"keep": keep}
    segments = None if runs.kind.translates else {"begin": range(3), "end": [5, 6]}
    together = runs.watch(runs.batch(), **options).heads(segments=segments)
    alone = runs.watch(runs.alone(0), **options).heads(segments=segments)
    known = 0
    by_head = {(head.layer, head.number): head for head in together}
    for head in alone:
        for column, value in asdict(head).items():
            other = asdict(by_head[head.layer, head.number])[column]
            if isinstance(value, float):
                known += not math.isnan(value)
                assert other == pytest.approx(value, rel=1e-6, abs=1e-8, nan_ok=True), (head.layer, column)
            elif column == "segments":
                assert other == pytest.approx(value, rel=1e-6), head.layer
            else:
                assert other == value, (head.layer, column)
    assert known >= 4 * len(alone)


@pytest.mark.parametrize(("name", "side"), CASES)
def test_tables(name, side):
    runs = Runs(name, side)
    together = runs.watch(runs.batch(), top=3)
    for i in range(len(LENGTHS)):
        alone = runs.watch(runs.alone(i), top=3)
        for of in ("queries", "keys", "top", "tokens"):
            here, there = alone.table(of), together.table(of)
            there = there[there["batch"] == i].assign(batch=0).reset_index(drop=True)
            assert list(here.columns) == list(there.columns)
            assert len(here) == len(there)
            for column in here:
                if here[column].dtype.kind == "f":
                    torch.testing.assert_close(
                        torch.tensor(here[column].to_numpy()),
                        torch.tensor(there[column].to_numpy()),
                        rtol=1e-6,
                        atol=1e-7,
                    )
                else:
                    assert (here[column].astype(str) == there[column].astype(str)).all(), (of, column)


LOGITS = [(name, side) for name, side in CASES if KINDS[name].has_logits]


@pytest.mark.parametrize(("name", "side"), LOGITS)
def test_effects(name, side):
    """Divergence, loss, probability and rank of a padded sentence are those of the sentence alone."""
    runs = Runs(name, side, lengths=LENGTHS[1:])
    edits = [
        ts.mute(heads=[-1]),
        ts.mute(heads=0, by="mean"),
        ts.hide([1]),
        ts.boost(range(2, 4), by=3.0),
        ts.hide(0, [3]),
    ]
    for measure in ("logits", "loss"):
        tables = []
        for args, named in (runs.batch(), runs.alone(0)):
            options = {"tokens": [5, 7]} if measure == "logits" else {}
            tables.append(ts.effect(runs.model, named or args, edits, measure, **options, progress=False).columns)
        for column in tables[0]:
            if column != "edit":
                assert tables[0][column] == pytest.approx(tables[1][column], rel=1e-6, abs=1e-9), (measure, column)
        assert any(tables[1]["kl" if measure == "logits" else "loss"])


@pytest.mark.parametrize(("name", "side"), LOGITS)
def test_losses_of_a_batch(name, side):
    """The loss of a batch is the mean over the predictions of its sentences alone."""
    runs = Runs(name, side)
    counts, sums = [], []
    for i in range(len(LENGTHS)):
        args, named = runs.alone(i)
        written = runs.target if runs.kind.translates else runs.source
        counts.append(int(written.keep[i].sum()) - 1)
        sums.append(ts.effect(runs.model, named or args, [], "loss", progress=False).columns["loss"][0] * counts[-1])
    args, named = runs.batch()
    together = ts.effect(runs.model, named or args, [], "loss", progress=False).columns["loss"][0]
    assert together == pytest.approx(sum(sums) / sum(counts), rel=1e-6)


@pytest.mark.parametrize(("name", "side"), CASES)
def test_health(name, side):
    runs = Runs(name, side, lengths=LENGTHS[1:])
    health = ts.Health(runs.model, every=1, rules=())
    reports = [health.measure(*args, **named) for args, named in (runs.batch(), runs.alone(0))]
    for layer, own in reports[1].layers.items():
        for part in ("entropy", "logit", "sink"):
            assert getattr(reports[0].layers[layer], part) == pytest.approx(getattr(own, part), rel=1e-5), (layer, part)
