"""Padding in `fuzz`: each sentence of a padded batch has the numbers of the sentence alone."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import telescope as ts
from telescope.recording import Recording

from .families import FAMILIES, Inputs, ModelCase, Texts, texts_of

TOP = 4


def record(model: nn.Module, inputs: Inputs, **options: Any) -> Recording:
    """Return the recording of one forward pass."""
    with torch.no_grad(), ts.watch(model, **options) as recording:
        inputs.run(model)
    return recording


# --------------------------------------------------------------------------------- queries and keys


def check_numbers(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare received weight, entropy, lse, top weights and keys, streaming and norms."""
    norms = ("norms",) if texts.family.has_known_projection else ()
    options: dict[str, Any] = {"keep": "queries-keys", "also": norms}
    if dice.random() < 0.5:
        options = {"keep": "summaries", "also": ("streaming", *norms), "top": TOP}
    together = record(case.model, texts.batch(), **options)
    for i in range(texts.count):
        alone = record(case.model, texts.alone(i), **options)
        case.equal("layers", together.names, alone.names)
        for layer in alone:
            own = alone[layer].call
            call = together[layer].call
            queries, keys = texts.sides(layer, call.across)
            rows = queries.real(i)
            columns = keys.real(i)
            here = own.survey(top=TOP)
            there = call.survey(top=TOP)
            case.near(f"received of {layer}", there.received[i][:, columns], here.received[0])
            case.equal(
                f"received by padding of {layer}", bool(there.received[i][:, ~columns].any()), False
            )
            case.near(f"entropy of {layer}", there.entropy[i][:, rows], here.entropy[0])
            case.equal(
                f"entropy of padding of {layer}", bool(there.entropy[i][:, ~rows].any()), False
            )
            case.near(f"lse of {layer}", there.lse[i][:, rows], here.lse[0])
            case.near(f"top weights of {layer}", there.top.weights[i][:, rows], here.top.weights[0])
            _compare_keys(case, layer, there.top.keys[i][:, rows], here.top, keys.column(i))
            case.equal(
                f"top keys of padding of {layer}",
                bool((there.top.keys[i][:, ~rows] != -1).any()),
                False,
            )
            if norms:
                exact = own._kept["norms"].tensor[0]
                case.near(f"norms of {layer}", call._kept["norms"].tensor[i][:, columns], exact)
            if own._streaming() is not None and not own.across:
                case.near(
                    f"streaming of {layer}", call._streaming()[i][:, rows], own._streaming()[0]
                )


def _compare_keys(case: ModelCase, layer: str, got: Tensor, exact: Any, first: int) -> None:
    """Compare the keys of the top weights, but for those whose weight is within rounding of the
    next one.
    """
    own = torch.where(got < 0, got, got - first)
    weights = exact.weights[0]
    gaps = weights[..., :-1] - weights[..., 1:]
    is_clear = gaps > (1e-9 if case.is_exact else 1e-3)
    # The last one has no known successor; each other one needs a gap on both sides.
    after = torch.cat([is_clear, torch.zeros_like(is_clear[..., :1])], -1)
    before = torch.cat([torch.ones_like(is_clear[..., :1]), is_clear], -1)
    differs = (own != exact.keys[0]) & after & before
    case.equal(f"top keys of {layer}", bool(differs.any()), False)


def check_tables(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare the tables of a sentence's queries, keys, top weights and tokens."""
    of = dice.choice(("queries", "keys", "top", "tokens"))
    together = record(case.model, texts.batch(), top=1).table(of)
    for i in range(texts.count):
        here = record(case.model, texts.alone(i), top=1).table(of)
        there = together[together["batch"] == i].assign(batch=0).reset_index(drop=True)
        case.equal(f"columns of the table of {of}", list(there.columns), list(here.columns))
        case.equal(f"rows of the table of {of}", len(there), len(here))
        for column in here:
            if case.family == "t5" and of in ("queries", "top") and column in ("key", "peak_key"):
                # Equal tokens at great distances have equal weights, of which rounding chooses one.
                continue
            what = f"column {column} of the table of {of}"
            if here[column].dtype.kind == "f":
                case.near(what, there[column].to_numpy(), here[column].to_numpy())
            elif case.is_exact:
                case.equal(
                    what, there[column].astype(str).tolist(), here[column].astype(str).tolist()
                )


# ---------------------------------------------------------------------- numbers of a whole sentence


def check_heads(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare every column of heads(), with segments, of a batch of one padded sentence."""
    options: dict[str, Any] = {"keep": "queries-keys"}
    if dice.random() < 0.5:
        options = {"keep": "summaries", "also": "streaming"}
    middle = texts.source.length(0) // 2
    segments = None if texts.family.translates else {"begin": range(middle), "end": [middle]}
    together = record(case.model, texts.batch(), **options).heads(segments=segments)
    compare_heads(
        case, together, record(case.model, texts.alone(0), **options).heads(segments=segments)
    )


def compare_heads(case: ModelCase, got: Any, exact: Any) -> None:
    """Compare all columns of two tables of heads."""
    found = {(head.layer, head.number): asdict(head) for head in got}
    case.equal("heads", sorted(found), sorted((head.layer, head.number) for head in exact))
    for head in exact:
        mine = found[head.layer, head.number]
        for column, value in asdict(head).items():
            what = f"{column} of head {head.number} of {head.layer}"
            if column == "segments":
                case.near(what, list(mine[column].values()), list(value.values()))
            elif isinstance(value, float) and (case.is_exact or column != "retrieval"):
                case.near(what, mine[column], value)
            elif case.is_exact or column in ("layer", "number"):
                case.equal(what, mine[column], value)


def check_effect(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare divergence, probability, rank and loss of a batch of one padded sentence."""
    length = min(texts.source.length(0), texts.written.length(0))
    edits = [random_edit(dice, length, case.sizes.heads, is_alone=True) for _ in range(3)]
    if texts.family.is_recurrent:
        edits = [ts.mute(times=dice.random())]
    for measure, options in (("logits", {"tokens": [5, 7]}), ("loss", {})):
        got, exact = (
            ts.effect(
                case.model, inputs.for_effect, edits, measure, **options, progress=False
            ).columns
            for inputs in (texts.batch(), texts.alone(0))
        )
        for column in exact:
            if column != "edit" and (case.is_exact or not column.startswith("rank")):
                case.near(f"{column} of effect", got[column], exact[column])


def check_losses(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare the loss of a batch with the mean over the predictions of its sentences alone."""
    total = 0.0
    predictions = 0
    for i in range(texts.count):
        logits = texts.alone(i).run(case.model)[0].detach().double()
        words = texts.written.sentence(i)[0]
        total -= float(logits.log_softmax(-1)[:-1].gather(1, words[1:, None]).sum())
        predictions += len(words) - 1
    together = ts.effect(case.model, texts.batch().for_effect, [], "loss", progress=False)
    case.near("loss of a batch", together.columns["loss"][0], total / predictions)


def check_health(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare the measurements of Health of a batch of one padded sentence."""
    health = ts.Health(case.model, every=1, rules=())
    got, exact = (
        health.measure(*inputs.args, **inputs.kwargs) for inputs in (texts.batch(), texts.alone(0))
    )
    for layer, own in exact.layers.items():
        for part in ("entropy", "logit", "sink"):
            case.near(
                f"{part} of {layer} by Health", getattr(got.layers[layer], part), getattr(own, part)
            )


# -------------------------------------------------------------------------------- edits and sources


def random_span(dice: random.Random, length: int) -> Any:
    """Draw positions of a sentence: one, a list, a range or a span without an end."""
    start = dice.randrange(length)
    stop = dice.randint(start + 1, length)
    some = sorted(dice.sample(range(length), dice.randint(1, min(3, length))))
    return dice.choice((start, some, range(start, stop), slice(start, None)))


def random_edit(
    dice: random.Random, length: int, heads: int, *, is_alone: bool = False, **options: Any
) -> Any:
    """Draw an edit by position of some heads in all layers; `is_alone` allows means, of one call
    only.
    """
    chosen = (
        sorted(dice.sample(range(heads), dice.randint(1, heads))) if dice.random() < 0.7 else None
    )
    kind = dice.choice(("mute", "mean", "hide", "boost") if is_alone else ("hide", "boost"))
    if kind == "mute":
        return ts.mute(heads=chosen, times=dice.choice((0.0, 0.5, 2.0)))
    if kind == "mean":
        return ts.mute(heads=chosen, by="mean", times=dice.choice((0.0, 0.5)))
    keys = random_span(dice, length)
    queries = random_span(dice, length) if dice.random() < 0.5 else None
    if kind == "hide":
        return ts.hide(keys, queries, heads=chosen, **options)
    return ts.boost(keys, by=dice.choice((0.2, 5.0)), queries=queries, heads=chosen, **options)


def check_edits(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare what a model returns under edits by position."""
    if texts.family.is_recurrent:
        edits = [ts.mute(times=dice.random()), ts.boost(0, by=3.0)]
    else:
        lengths = [
            part.length(i) for part in (texts.source, texts.written) for i in range(texts.count)
        ]
        edits = [
            random_edit(dice, min(lengths), case.sizes.heads, is_alone=True)
            for _ in range(dice.randint(1, 2))
        ]
    with torch.no_grad(), ts.edit(case.model, *edits):
        together = texts.batch().run(case.model)
    for i in range(texts.count):
        with torch.no_grad(), ts.edit(case.model, *edits):
            alone = texts.alone(i).run(case.model)
        case.near(f"output under {edits[0].kind}", together[i][texts.written.real(i)], alone[0])


def check_sources(case: ModelCase, texts: Texts, dice: random.Random) -> None:
    """Compare the sources of a span by every way of finding them."""
    i = dice.randrange(texts.count)
    length = texts.written.length(i)
    start = dice.randint(1, length - 1)
    span = range(start, dice.randint(start + 1, length))
    together = _sources(case, texts, texts.batch(), i, texts.written.column(i), span, i)
    alone = _sources(case, texts, texts.alone(i), 0, 0, span, i)
    for how, exact in alone.items():
        places = [sorted(found.rows, key=lambda row: row.start) for found in (together[how], exact)]
        case.equal(f"segments by {how}", *([row.start for row in rows] for rows in places))
        case.near(f"sources by {how}", *([row.score for row in rows] for rows in places))


def _sources(
    case: ModelCase, texts: Texts, inputs: Inputs, row: int, first: int, span: range, sentence: int
) -> dict[str, Any]:
    # A recurrent decoder attends once for each token: its keys have several gradients, its ids are
    # not known.
    hows = ["weights"]
    also: tuple[str, ...] = ()
    if not texts.family.is_recurrent:
        hows += ["rollout", "gradient", "hidden"]
        also = ("gradients",)
    if texts.family.has_known_projection:
        hows.append("carried")
        also = ("norms", "gradients")
    with ts.watch(case.model, keep="queries-keys", also=also) as recording:
        output = inputs.run(case.model)
        if also:  # the gradient of the log probability of the span
            tokens = texts.written.sentence(sentence)[0, list(span)]
            before = [first + place - 1 for place in span]
            output[row, before].log_softmax(-1).gather(-1, tokens[:, None]).sum().backward()
    case.model.zero_grad(set_to_none=True)
    found = {}
    for how in hows:
        more = {"model": case.model} if how == "hidden" else {}
        found[how] = recording.sources(span, how, sequence=row, **more)
    segments = {"first": (0, 1)}
    if texts.family.translates or span.start > 1:
        segments["second"] = (1, 2)
    found["segments"] = recording.sources(span, "weights", sequence=row, segments=segments)
    return found


PADDING: dict[str, tuple[Callable[[ModelCase, Texts, random.Random], None], bool, bool]] = {
    "numbers": (check_numbers, False, False),
    "tables": (check_tables, False, False),
    "heads": (check_heads, True, False),
    "effect": (check_effect, True, True),
    "losses": (check_losses, False, True),
    "health": (check_health, True, False),
    "edits": (check_edits, False, False),
    "sources": (check_sources, False, True),
}
"""Name → the comparison, whether it is of a batch of one sentence, and whether the model has to
predict tokens.
"""


def check_padding(case: ModelCase) -> Counter[str]:
    """Compare a padded batch with each sentence alone in one respect, drawn at random."""
    dice = case.dice()
    family = FAMILIES[case.family]
    part = dice.choice(
        [name for name, (_, _, predicts) in PADDING.items() if family.predicts or not predicts]
    )
    compare, is_single, _ = PADDING[part]
    lengths = case.lengths[:1] if is_single else case.lengths
    compare(case, texts_of(case.family, lengths, case.side, dice, case.device), dice)
    return Counter({f"padding: {part}": 1})
