"""Padding has one rule: a sentence in a padded batch has the numbers of the sentence alone.

Every public number is compared, for every kind of model at hand, with padding in front, behind and on both sides, for
texts that end early in a batch, and for prompts that are read in chunks. The sentence alone is run without padding.
"""

import math
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch

import telescope as ts
from support.huggingface import LLAMA, bert, gpt, marian, numbered
from telescope.decoding import generate
from telescope.measures import places

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
                close(call._kept["norms"].tensor[i][:, of_keys], own._kept["norms"].tensor[0], **where)
            if own._streaming() is not None and not own.across:
                close(call._streaming()[i][:, of_queries], own._streaming()[0], **where)
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


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("name", "side"), CASES)
def test_heads_where_padding_has_the_id_of_a_word(name, side, keep, is_long, monkeypatch):
    """As where padding is the end of a text: it is no earlier occurrence, which a token follows, and no copy."""
    if is_long:  # of long texts the keys of each habit are listed
        monkeypatch.setattr(places, "SMALL", {"cpu": 0})
    runs = Runs(name, side, lengths=LENGTHS[1:])
    word = runs.target.sentence(0)[0, 1] if runs.kind.translates else runs.source.sentence(0)[0, 0]
    for part in (runs.source, runs.target):
        part.ids[~part.keep] = word
    together = runs.watch(runs.batch(), keep=keep).heads()
    alone = {(head.layer, head.number): head for head in runs.watch(runs.alone(0), keep=keep).heads()}
    assert len(together) == len(alone)
    for head in together:
        own = alone[head.layer, head.number]
        for column in ("same", "induction", "retrieval"):
            value = getattr(own, column)
            assert getattr(head, column) == pytest.approx(value, rel=1e-6, abs=1e-8, nan_ok=True), (head.layer, column)


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
        for part in ("entropy", "logit", "one_key"):
            assert getattr(reports[0].layers[layer], part) == pytest.approx(getattr(own, part), rel=1e-5), (layer, part)


# --------------------------------------------------------------------------------------- texts that end, and prompts


def generated(model, source, keep=None, *, watch=None, **options):
    """Return what `generate` writes greedily, and the recording if it is watched."""
    named = {} if keep is None else {"attention_mask": keep.long()}
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, **options}
    if watch is None:
        return model.generate(source, **named, **options)
    with ts.watch(model, **watch) as recording:
        ids = model.generate(source, **named, **options)
    return ids, recording


def ending_early(name, model, sources):
    """Return an end token that the second sentence writes after a few tokens, and the first never writes."""
    kind = KINDS[name]
    texts = [generated(model, sources.sentence(i), eos_token_id=None)[0].tolist() for i in range(2)]
    prompts = [1 if kind.translates else len(sources.sentence(i)[0]) for i in range(2)]
    for token in texts[1][prompts[1] + 2 : -3]:
        if token not in texts[0] and texts[1].index(token, prompts[1]) >= prompts[1] + 2:
            return token
    raise AssertionError("no token ends one text early")


@pytest.mark.parametrize("keep", [*KEEPS, "saved"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2, window", "t5"])
def test_texts_that_end_early(name, keep, tmp_path):
    """After its end token a text is padded until the others end; alone it stops: those queries do not count."""
    kind = KINDS[name]
    model = kind.make()
    for seed in range(20):
        sources = padded(LENGTHS, "right" if kind.translates else "left", seed=seed)
        try:
            end = ending_early(name, model, sources)
            break
        except AssertionError:
            continue
    else:
        raise AssertionError("no text ends early")
    watch = {"keep": "summaries" if keep == "saved" else keep}
    together, recorded = generated(model, sources.ids, sources.keep, watch=watch, eos_token_id=end)
    alone, single = generated(model, sources.sentence(1), watch=watch, eos_token_id=end)
    written = alone.shape[1] - (1 if kind.translates else LENGTHS[1])
    assert 2 < written < 9
    assert (together[1] == 0).sum() > (sources.keep[1] == 0).sum() * (not kind.translates)  # padding after the end
    if keep == "saved":
        recorded.save(tmp_path / "run.telescope")
        recorded = ts.open(tmp_path / "run.telescope")
    for layer in single:
        here, there = single[layer].call, recorded[layer].call
        columns = there.text_columns(1)
        assert len(columns.queries) == here.size[0]
        rows, keys = slice(columns.queries.start, columns.queries.stop), slice(columns.keys.start, columns.keys.stop)
        near = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(there.survey().received[1][:, keys], here.survey().received[0], **near)
        torch.testing.assert_close(there.survey().entropy[1][:, rows], here.survey().entropy[0], **near)
        assert not there.survey().entropy[1][:, rows.stop :].any()
    # one sequence of the batch alone decides a head's numbers once the other is left out
    shares = [call._shares(call._places())[row] for call, row in ((recorded[layer].call, 1), (single[layer].call, 0))]
    torch.testing.assert_close(shares[0], shares[1], rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("make", [own_gpt, own_transformer, own_luong])
def test_own_texts_that_end_early(make):
    model = make()
    prompts = [[5, 6, 7, 8, 9], [3, 4, 5]]
    model.special = ts.models.Special(start=1, end=())
    sampled = {"max_new_tokens": 9, "temperature": 1.0}  # prompt i is sampled with seed + i
    texts = [generate(model, [prompt], seed=i, **sampled)[0].ids for i, prompt in enumerate(prompts)]
    ends = [token for token in texts[1][2:-3] if token not in texts[0] and texts[1].index(token) >= 2]
    assert ends, texts
    with ts.watch(model) as recorded:
        together = generate(model, prompts, end=ends[:1], **sampled)
    with ts.watch(model) as single:
        alone = generate(model, prompts[1:], seed=1, end=ends[:1], **sampled)
    assert together[1].ids == alone[0].ids
    assert len(alone[0].ids) < len(together[0].ids)
    for layer in single:
        here, there = single[layer].call, recorded[layer].call
        columns = there.text_columns(1)
        keys = slice(columns.keys.start, columns.keys.stop)
        assert len(columns.queries) == here.size[0], layer
        close(there.survey().received[1][:, keys], here.survey().received[0], layer=layer)


CHUNKS = (5, 4, 11, 1)  # of prompts of 11 tokens: the last chunk may be a single token


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2, window"])
def test_chunked_prompts(name, chunk):
    """A prompt that is read in chunks is edited and recorded as one that is read at once."""
    model = KINDS[name].make()
    source = padded(LENGTHS, "left", more=0)
    spans = [
        ts.hide(ts.tokens(*{int(token) for token in source.sentence(1)[0][2:5]})),
        ts.hide([3, 8], new=False),
        ts.hide([3], slice(6, None), new=False),
        ts.boost(range(1, 4), by=5.0, new=False),
    ]
    options = {"output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
    for edit in spans:
        logits = []
        for size in (None, chunk):
            with ts.edit(model, edit):
                out = generated(model, source.ids, source.keep, prefill_chunk_size=size, **options)
            logits.append(torch.stack(out.logits))
        torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
        plain = generated(model, source.ids, source.keep, **options)
        assert (torch.stack(plain.logits) - logits[0]).abs().max() > 1e-3, edit
    recordings = [
        generated(model, source.ids, source.keep, watch={"top": 4}, prefill_chunk_size=size)[1]
        for size in (None, chunk)
    ]
    for layer in recordings[0]:
        whole, parts = (recording[layer].call for recording in recordings)
        assert whole._facts.prompt == parts._facts.prompt == source.ids.shape[1]
        torch.testing.assert_close(whole.survey().received, parts.survey().received, rtol=1e-4, atol=1e-5)
    for one, other in zip(*(recording.heads().sort("layer") for recording in recordings), strict=True):
        for column, value in asdict(one).items():
            if isinstance(value, float):
                assert asdict(other)[column] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), column


def test_the_mean_of_a_prompt_in_chunks_is_refused():
    model = KINDS["llama"].make()
    source = padded(LENGTHS, "left", more=0)
    for chunk in (5, 10):
        with (
            pytest.raises(ValueError, match=r"needs the mean of the whole prompt.*prefill_chunk_size"),
            ts.edit(model, ts.mute(by="mean")),
        ):
            generated(model, source.ids, source.keep, prefill_chunk_size=chunk)
    with ts.edit(model, ts.mute(by="mean")):
        generated(model, source.ids, source.keep, prefill_chunk_size=11)


def test_a_prompt_read_by_hand_in_chunks():
    model = KINDS["llama"].make()
    ids = padded([9], "left", more=0).ids
    token = int(ids[0, 5])
    with torch.no_grad(), ts.edit(model, ts.hide(ts.tokens(token), new=False)):
        whole = model(ids).logits[:, -1]
    with torch.no_grad(), ts.edit(model, ts.hide(ts.tokens(token), new=False)):
        cache = transformers.DynamicCache()
        for part in ids.split([4, 3, 2], 1):
            logits = model(part, past_key_values=cache).logits[:, -1]
    torch.testing.assert_close(whole, logits, rtol=1e-4, atol=1e-4)


def test_a_copy_of_an_intercepted_model_reads_its_own_prompts():
    model = KINDS["llama"].make()
    ids = padded([6], "left", more=0).ids
    with ts.watch(model) as recording:
        copied = deepcopy(model)
        assert "_prefill" in vars(model)
        generated(copied, ids)
        assert not any(watched.calls for watched in recording.values())
    assert "_prefill" not in vars(model)
    assert copied._prefill.__self__ is copied


@pytest.mark.parametrize("side", SIDES)
def test_selected_queries_count_own_tokens(side):
    runs = Runs("llama", side, lengths=LENGTHS[1:])
    for queries in ([2, 5], slice(3, None), [-1]):
        together = runs.watch(runs.batch(), queries=queries)
        alone = runs.watch(runs.alone(0), queries=queries)
        for layer in alone:
            close(together[layer].entropy[0], alone[layer].entropy[0], layer=layer, queries=queries)


@pytest.mark.parametrize("keep", [*KEEPS, "saved"])
@pytest.mark.parametrize("side", SIDES)
def test_queries_selected_of_a_batch(side, keep, tmp_path):
    """A position stands in another column in each sequence: of each, its own query is kept, and others are empty."""
    runs = Runs("llama", side)
    options = {"keep": "summaries" if keep == "saved" else keep}
    for number, queries in enumerate(([2, 5], slice(3, None), [-1])):
        together = runs.watch(runs.batch(), queries=queries, **options)
        if keep == "saved":
            together.save(tmp_path / f"{number}.telescope")
            together = ts.open(tmp_path / f"{number}.telescope")
        for i in range(len(LENGTHS)):
            alone = runs.watch(runs.alone(i), queries=queries, **options)
            for layer in alone:
                here, there = alone[layer].call, together[layer].call
                first = runs.source.column(i)
                own = [place for place, row in enumerate(there.rows) if row - first in here.rows]
                where = {"layer": layer, "queries": queries, "sequence": i}
                close(there.survey().entropy[i][:, own], here.survey().entropy[0], **where)
                close(there.survey().received[i][:, runs.source.keep[i]], here.survey().received[0], **where)
                others = [place for place in range(len(there.rows)) if place not in own]
                assert (there.survey().top.keys[i][:, others] == -1).all()
                shares = [call._shares(call._places())[row] for call, row in ((there, i), (here, 0))]
                close(*(part.nan_to_num() for part in shares), **where)


def test_queries_selected_while_a_batch_is_written():
    model = KINDS["llama"].make()
    sources = padded(LENGTHS, "left", seed=3)
    options = {"watch": {"queries": [4, 9, 12]}, "eos_token_id": None}
    _, together = generated(model, sources.ids, sources.keep, **options)
    for i in range(2):
        _, alone = generated(model, sources.sentence(i), **options)
        for layer in alone:
            here, there = alone[layer].call, together[layer].call
            columns = there.text_columns(i).keys
            received = there.survey().received[i][:, columns.start : columns.stop]
            torch.testing.assert_close(received, here.survey().received[0], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------ sources


SOURCES = [(name, side) for name, side in CASES if KINDS[name].has_logits]


@pytest.mark.parametrize(("name", "side"), SOURCES)
def test_sources(name, side):
    """The sources of a span of a padded sentence, by every `how`, are those of the sentence alone."""
    runs = Runs(name, side)
    kind = runs.kind
    is_recurrent = name == "LuongTranslator"
    # A recurrent decoder has no W_O, and attends once for each token: keys have several gradients, ids are not known.
    options = {"keep": "queries-keys", "also": () if is_recurrent else ("norms", "gradients")}
    hows = ["weights", *([] if is_recurrent else ["carried", "rollout", "gradient", "hidden"])]
    for i in range(len(LENGTHS)):
        written = runs.target if kind.translates else runs.source
        span = range(3, 5)
        found = []
        for inputs, row, first in ((runs.batch(), i, written.column(i)), (runs.alone(i), 0, 0)):
            args, named = inputs
            with ts.watch(runs.model, **options) as recording:
                output = runs.model(*args, **named)
                logits = (output if torch.is_tensor(output) else output.logits).log_softmax(-1)
                tokens = written.sentence(i)[0, list(span)]
                rows = [first + token - 1 for token in span]
                logits[row, rows].gather(-1, tokens[:, None]).sum().backward()
            sources = {}
            for how in hows:
                more = {"model": runs.model} if how == "hidden" else {}
                sources[how] = recording.sources(span, how, sequence=row, **more)
            count = int((runs.source if kind.translates else written).keep[i].sum()) if kind.translates else 3
            segments = {"a": (0, 2), "b": [2]}
            sources["segments"] = recording.sources(span, "weights", sequence=row, segments=segments)
            assert len(sources["weights"].context) == count
            found.append(sources)
        for how in found[0]:
            assert found[0][how].shares.keys() == found[1][how].shares.keys()
            numbers = [torch.tensor([one.score for one in by_place(sources[how])]) for sources in found]
            close(*numbers, how=how, sequence=i)
        with pytest.raises(ValueError, match="is not in the text"):
            recording.sources(range(3, int(written.keep[i].sum()) + 2), "weights", sequence=row)


def by_place(sources):
    return sorted(sources.rows, key=lambda one: one.start)
