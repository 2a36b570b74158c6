"""Generation in `fuzz`: texts that end early in a batch, and prompts that are read in chunks.

A text in a batch has the numbers of the text alone; a prompt in chunks has those of the prompt read
at once.
"""

import random
from collections import Counter
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import telescope as ts
from telescope.decoding import generate
from telescope.recording import Recording

from .attentions import WrongError
from .families import FAMILIES, PAD, VOCABULARY, ModelCase, Padded, padded
from .padding import compare_heads, random_edit

NEW = 8  # tokens that a text is continued by, at most


@lru_cache(maxsize=64)
def _noise(seed: int, device: str) -> Tensor:
    """Return what is added to the logits after each token, so that the texts of small models do not
    loop.
    """
    dice = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(VOCABULARY, VOCABULARY, generator=dice).to(device)


def _write(
    case: ModelCase,
    prompts: Tensor,
    keep: Tensor | None,
    end: int | None,
    *,
    watch: Any = None,
    **options: Any,
) -> Any:
    """Let a model of transformers write; a token depends on its own text alone. Return its output,
    and a recording.
    """
    noise = _noise(case.seed % 32, case.device)

    def vary(ids: Tensor, logits: Tensor) -> Tensor:
        return logits + noise[ids[:, -1]]

    # Without a mask, `generate` takes the id of padding for padding, also where it is a word.
    options["attention_mask"] = torch.ones_like(prompts) if keep is None else keep.long()
    options |= {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": PAD, "eos_token_id": end}
    options |= {"logits_processor": [vary], "output_logits": True, "return_dict_in_generate": True}
    if watch is None:
        return case.model.generate(prompts, **options), None
    with ts.watch(case.model, **watch) as recording:
        output = case.model.generate(prompts, **options)
    return output, recording


# ----------------------------------------------------------------------------- texts that end early


def check_endings(case: ModelCase) -> Counter[str]:
    """Let one text of a batch end before the others, and compare every text with the text alone."""
    dice = case.dice()
    family = FAMILIES[case.family]
    side = "right" if family.translates else "left"
    prompts = padded(case.lengths, side, dice, case.device, more=dice.randint(0, 2))
    watch = {"keep": dice.choice(("summaries", "queries-keys"))}
    run = _end_own if family.own else _end_transformers
    found = run(case, prompts, watch, dice)
    if found is None:
        return Counter({"endings: no text ends early, left out": 1})
    together, singles = found
    for i, alone in enumerate(singles):
        _compare_texts(case, together, alone, i)
    return Counter({"endings": 1})


def _end_transformers(case: ModelCase, prompts: Padded, watch: Any, dice: random.Random) -> Any:
    """Return the recordings of a batch whose texts end at a token that one of them wrote, and of
    each alone.
    """
    skipped = 1 if FAMILIES[case.family].translates else prompts.ids.shape[1]
    texts = _write(case, prompts.ids, prompts.keep, None)[0].sequences[:, skipped:].tolist()
    end = _draw_end(texts, dice)
    if end is None:
        return None
    output, together = _write(case, prompts.ids, prompts.keep, end, watch=watch)
    singles = []
    for i in range(len(prompts.ids)):
        alone, recording = _write(case, prompts.sentence(i), None, end, watch=watch)
        before = 1 if skipped == 1 else prompts.length(i)
        written = alone.sequences[0, before:].tolist()
        if not _are_same(
            case, output.sequences[i, skipped:].tolist(), written, padding_follows=True
        ):
            return None
        singles.append(recording)
    return together, singles


def _end_own(case: ModelCase, prompts: Padded, watch: Any, dice: random.Random) -> Any:
    """Do the same with Telescope's own decoding, which also samples: prompt i with seed + i."""
    lists = [prompts.sentence(i)[0].tolist() for i in range(len(prompts.ids))]
    options: dict[str, Any] = {"max_new_tokens": NEW, "temperature": dice.choice((0.0, 1.0, 3.0))}
    seed = dice.randrange(1000)
    end = _draw_end(
        [line.ids for line in generate(case.model, lists, end=[2], seed=seed, **options)], dice
    )
    if end is None:
        return None
    with ts.watch(case.model, **watch) as together:
        lines = generate(case.model, lists, end=[end], seed=seed, **options)
    singles = []
    for i, prompt in enumerate(lists):
        with ts.watch(case.model, **watch) as recording:
            (alone,) = generate(case.model, [prompt], end=[end], seed=seed + i, **options)
        if not _are_same(case, lines[i].ids, alone.ids):
            return None
        singles.append(recording)
    return together, singles


def _draw_end(texts: list[list[int]], dice: random.Random) -> int | None:
    """Return a token at which one text ends at least two tokens before another; None if there is
    none.
    """
    lengths = {}
    for token in {token for text in texts for token in text}:
        lengths[token] = [text.index(token) if token in text else len(text) for text in texts]
    ends = [token for token, all_of in lengths.items() if min(all_of) + 2 <= max(all_of)]
    return dice.choice(sorted(ends)) if ends else None


def _are_same(
    case: ModelCase, got: list[int], exact: list[int], *, padding_follows: bool = False
) -> bool:
    """Return whether two texts are the same; raise where rounding cannot explain another one."""
    same = got[: len(exact)] == exact and (not padding_follows or set(got[len(exact) :]) <= {PAD})
    if not same and case.is_exact:
        raise WrongError("a text of a batch", f"{got}, not {exact}", "")
    return same


def _compare_texts(case: ModelCase, together: Recording, alone: Recording, i: int) -> None:
    """Compare the numbers of one text of a batch with the text alone."""
    for layer in alone:
        here = alone[layer].call
        there = together[layer].call
        columns = there.text_columns(i)
        case.equal(f"queries of {layer}", len(columns.queries), here.size[0])
        rows = slice(columns.queries.start, columns.queries.stop)
        keys = slice(columns.keys.start, columns.keys.stop)
        own = here.survey()
        survey = there.survey()
        case.near(f"received of {layer}", survey.received[i][:, keys], own.received[0])
        case.near(f"entropy of {layer}", survey.entropy[i][:, rows], own.entropy[0])
        case.equal(
            f"entropy after the end in {layer}",
            bool(survey.entropy[i][:, rows.stop :].any()),
            False,
        )
        case.near(f"top weights of {layer}", survey.top.weights[i][:, rows], own.top.weights[0])
        case.near(
            f"shares of {layer}", there._shares(there._places())[i], here._shares(here._places())[0]
        )


# -------------------------------------------------------------------------------- prompts in chunks


def check_chunks(case: ModelCase) -> Counter[str]:
    """Compare a prompt that is read in chunks, edited and recorded, with the prompt read at
    once.
    """
    dice = case.dice()
    prompts = padded(case.lengths, "left", dice, case.device, more=dice.choice((0, 0, 2)))
    width = prompts.ids.shape[1]
    chunk = dice.randint(1, width + 1)
    part = dice.choice(("edits", "edits", "recording", "mean"))
    if part == "edits":
        edits = [_edit_of_prompt(case, prompts, dice) for _ in range(dice.randint(1, 2))]
        whole, parts = (_write_edited(case, prompts, edits, size) for size in (None, chunk))
        if _are_same(case, parts.sequences.flatten().tolist(), whole.sequences.flatten().tolist()):
            case.near(
                f"logits under {edits[0].kind}",
                torch.stack(parts.logits),
                torch.stack(whole.logits),
            )
    elif part == "recording":
        watch = {"keep": dice.choice(("summaries", "queries-keys"))}
        options = [{}, {"prefill_chunk_size": chunk}]
        found = [
            _write(case, prompts.ids, prompts.keep, None, watch=watch, **more) for more in options
        ]
        (whole, exact), (parts, got) = found
        if _are_same(case, parts.sequences.flatten().tolist(), whole.sequences.flatten().tolist()):
            _compare_recordings(case, got, exact, width)
    elif chunk < width:
        _expect_refusal(case, prompts, chunk)
    else:
        _write_edited(case, prompts, [ts.mute(by="mean")], chunk)
    return Counter({f"chunks: {part}": 1})


def _edit_of_prompt(case: ModelCase, prompts: Padded, dice: random.Random) -> Any:
    shortest = min(prompts.length(i) for i in range(len(prompts.ids)))
    new = dice.random() < 0.5
    if dice.random() < 0.3:
        # Tokens are looked for in each prompt by itself: a token that all of them have.
        present = [set(prompts.sentence(i)[0].tolist()) for i in range(len(prompts.ids))]
        shared = sorted(set.intersection(*present)) or sorted(set.union(*present))
        token = ts.tokens(dice.choice(shared))
        return ts.hide(token, new=new) if dice.random() < 0.5 else ts.boost(token, by=4.0, new=new)
    return random_edit(dice, shortest, case.sizes.heads, new=new)


def _write_edited(case: ModelCase, prompts: Padded, edits: list[Any], chunk: int | None) -> Any:
    options = {} if chunk is None else {"prefill_chunk_size": chunk}
    with ts.edit(case.model, *edits):
        return _write(case, prompts.ids, prompts.keep, None, **options)[0]


def _compare_recordings(case: ModelCase, got: Recording, exact: Recording, width: int) -> None:
    for layer in exact:
        here = exact[layer].call
        there = got[layer].call
        case.equal(
            f"length of the prompt in {layer}",
            (here._facts.prompt, there._facts.prompt),
            (width, width),
        )
        case.near(f"received of {layer}", there.survey().received, here.survey().received)
        case.near(f"entropy of {layer}", there.survey().entropy, here.survey().entropy)
        case.near(f"top weights of {layer}", there.survey().top.weights, here.survey().top.weights)
    compare_heads(case, got.heads(), exact.heads())


def _expect_refusal(case: ModelCase, prompts: Padded, chunk: int) -> None:
    """Raise a WrongError unless the mean of a prompt in several chunks is refused."""
    try:
        _write_edited(case, prompts, [ts.mute(by="mean")], chunk)
    except ValueError as refusal:
        if "prefill_chunk_size" not in str(refusal):
            raise
        return
    raise WrongError("the mean of a prompt in chunks", f"chunks of {chunk} were not refused", "")
