"""Which key heads of SmolLM2 need the whole context, by the gates of DuoAttention (Xiao et al.
2024), and what streaming costs: numbers and figure of a page.

    python -m docs.findings.streaming
"""

import argparse
import random
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import telescope as ts

from .common import (
    ACCENT,
    GREY,
    INK,
    LIGHT,
    WARM,
    Numbers,
    book,
    column,
    device,
    labels_from,
    save_figure,
    smollm2,
    spearman,
    style,
    windows,
)

LENGTH = 256
SINKS, RECENT = 4, 28  # what a streaming head sees; the paper trains with 128 and 256 of 32k tokens
KEYS, WORDS = 3, 8  # passkeys of a text, and words of each; the paper has 10 of 32 words
STEPS, RATE = 60, 0.1  # of Adam; the paper: 2,000 steps at 0.02
PENALTIES = (0.05,)  # of the mean gate; the first is that of the page
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
KEPT = ts.window(RECENT) | ts.prefix(SINKS)

# ----------------------------------------------------------------------------------------- passkeys


class Passkeys:
    """Draw texts in which some passkeys are told and, at the end, asked for.

    filler  the text between them, and `source`, the text whose words they are made of
    """

    def __init__(self, tokenizer: Any, filler: str, source: str) -> None:
        self.tokenizer = tokenizer
        self.filler = tokenizer(filler)["input_ids"]
        words = sorted({word for word in source.lower().split() if word.isalpha()})
        # Words of one token, so that each text has as many tokens to recall.
        self.words = [
            ids[0] for word in words if len(word) > 3 and len(ids := self.encode(f" {word}")) == 1
        ]

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def draw(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids of a text, (LENGTH), and which of its tokens are to be recalled."""
        draw = random.Random(seed)
        keys = [draw.sample(self.words, WORDS) for _ in range(KEYS)]
        names = draw.sample("ABCDEFGHJKLMNPQRSTUVWXYZ", KEYS)
        told = [
            self.encode(f"\n\nRemember: passkey {name} is") + key + self.encode(".\n\n")
            for name, key in zip(names, keys, strict=True)
        ]
        # Ask in another order than that in which they were told.
        asked, recalled = [], []
        for i in draw.sample(range(KEYS), KEYS):
            question = self.encode(f"\n\nRemember: passkey {names[i]} is")
            asked += question + keys[i] + self.encode(".")
            recalled += [False] * len(question) + [True] * WORDS + [False]
        # What is told lies anywhere in the first half of the text between.
        room = LENGTH - len(asked) - sum(map(len, told))
        first = draw.randrange(len(self.filler) - room)
        filler = self.filler[first : first + room]
        places = sorted(draw.sample(range(room // 2), KEYS))
        text, end = [], 0
        for place, key in zip(places, told, strict=True):
            text += filler[end:place] + key
            end = place
        text += filler[end:] + asked
        marks = [False] * (LENGTH - len(recalled)) + recalled
        return torch.tensor(text), torch.tensor(marks)

    def batch(self, seeds: range) -> tuple[torch.Tensor, torch.Tensor]:
        """Return some texts: (batch, LENGTH) ids, and which tokens are recalled."""
        ids, marks = zip(*(self.draw(seed) for seed in seeds), strict=True)
        return torch.stack(ids).to(device()), torch.stack(marks).to(device())


# -------------------------------------------------------------------------------------------- gates


def gated(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as DuoAttention trains: gate · full + (1 - gate) · streaming, a gate for each key
    head.
    """
    length, count = query.shape[2], query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(count, 1), value.repeat_interleave(count, 1)
    full = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    streaming = scaled_dot_product_attention(
        query, key, value, attn_mask=_streaming_mask(length, query.device), scale=scaling
    )
    gate = module.gates.repeat_interleave(count)[:, None, None]
    return (gate * full + (1 - gate) * streaming).transpose(1, 2), None


def _streaming_mask(length: int, where: torch.device) -> torch.Tensor:
    return (ts.causal & KEPT).block(length, length)[0, 0].to(where)


def optimise(
    model: Any, passkeys: Passkeys, steps: int, penalty: float
) -> tuple[torch.Tensor, list[list[float]]]:
    """Return the gates, (layers, key heads), and the loss and the mean gate after each step."""
    from transformers import AttentionInterface

    AttentionInterface.register("gated", gated)
    layers = model.model.layers
    heads = model.config.num_key_value_heads
    gates = torch.ones(len(layers), heads, device=device(), requires_grad=True)
    optimiser = torch.optim.Adam([gates], lr=RATE)
    plain = model.config._attn_implementation
    course = []
    for step in range(steps):
        ids, marks = passkeys.batch(range(10_000 + step, 10_001 + step))
        with torch.no_grad():
            wanted = model.model(ids).last_hidden_state[marks]
        model.set_attn_implementation("gated")
        for layer, own in zip(layers, gates, strict=True):
            layer.self_attn.gates = own
        found = model.model(ids, use_cache=False).last_hidden_state[marks]
        model.set_attn_implementation(plain)
        # The distance of the hidden states of the recalled tokens, and a price for each open gate.
        distance = (found - wanted).square().mean()
        loss = distance + penalty * gates.abs().sum() / gates.numel()
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = RATE * min(1, 2 * (1 - step / steps))
        optimiser.step()
        with torch.no_grad():
            gates.clamp_(0, 1)
        course.append([float(distance.detach()), float(gates.detach().mean())])
        if step % 5 == 0:
            print(f"step {step}  distance {distance:.4f}  mean gate {gates.mean():.3f}", flush=True)
    return gates.detach().cpu(), course


# ------------------------------------------------------------------ what the library says by itself


def cheap_measures(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return measures of every key head on some texts: (layers, key heads) each.

    retrieval  the column of heads(): how often the largest weight is on an earlier copy of the
               token that the model writes; the largest of the query heads that share the key head
    outside    the share of the weight that a streaming head would not see; the largest likewise
    """
    with torch.no_grad(), ts.watch(model, keep="queries-keys") as recording:
        model(ids)
    shared = model.config.num_key_value_heads

    def grouped(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.view(len(recording), shared, -1).amax(2)

    outside = []
    for watched in recording.values():
        call = watched.call
        seen = ts.survey(call.queries, call.keys, call.attention, within=KEPT)
        outside.append(1 - seen.within[:, :, RECENT + SINKS :].mean((0, 2)).cpu())
    return {
        "retrieval": grouped(column(recording, "retrieval")),
        "outside": grouped(torch.stack(outside)),
    }


# ----------------------------------------------------------------------------- what streaming costs


def streaming_edits(model: Any, chosen: torch.Tensor) -> list[Any]:
    """Return the edits that let some key heads, (layers, key heads), see a window and sinks."""
    count = model.config.num_attention_heads // model.config.num_key_value_heads
    edits = []
    for layer, own in enumerate(chosen):
        if own.any():
            free = ~own.repeat_interleave(count)
            mask = (free[:, None, None] | KEPT.block(LENGTH, LENGTH)[0])[None].to(device())

            def restrict(attention: ts.Attention, mask: torch.Tensor = mask) -> ts.Attention:
                return replace(attention, mask=attention.mask & ts.from_tensor(mask))

            edits.append(ts.redefine(f"model.layers.{layer}.self_attn", restrict))
    return edits


def cost(model: Any, texts: dict[str, Any], chosen: torch.Tensor) -> dict[str, float]:
    """Return what is left with some heads streaming: the passkeys recalled, and losses in nats."""
    ids, marks = texts["passkeys"]
    edits = streaming_edits(model, chosen)
    with torch.no_grad(), ts.edit(model, *edits):
        logits = model(ids).logits[:, :-1]
        right = logits.argmax(-1) == ids[:, 1:]
        losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        written = model(texts["text"]).logits.flatten(0, 1)
        text = cross_entropy(written, texts["labels"].flatten())
    wanted = marks[:, 1:]
    return {
        "recalled": float(right[wanted].float().mean()),
        "passkey_loss": float(losses[wanted].mean()),
        "text_loss": float(text),
    }


def lowest(scores: torch.Tensor, share: float) -> torch.Tensor:
    """Return which heads have the lowest scores, a share of all."""
    chosen = torch.zeros(scores.numel(), dtype=torch.bool)
    chosen[scores.flatten().argsort(stable=True)[: round(share * scores.numel())]] = True
    return chosen.view_as(scores)


def sweep(
    model: Any, texts: dict[str, Any], orders: dict[str, list[torch.Tensor]]
) -> dict[str, Any]:
    """Return the cost of each order of heads at each share, with all draws of random orders."""
    found: dict[str, Any] = {}
    none = cost(model, texts, torch.zeros_like(orders["gates"][0]).bool())
    every = cost(model, texts, torch.ones_like(orders["gates"][0]).bool())
    for name, scores in orders.items():
        found[name] = [
            [
                none if share == 0 else every if share == 1 else cost(model, texts, part)
                for part in [lowest(one, share) for one in scores]
            ]
            for share in SHARES
        ]
        print(name, [round(row[0]["recalled"], 3) for row in found[name]], flush=True)
    return found


# ----------------------------------------------------------------------------------- the whole page


def draw(gates: torch.Tensor, found: dict[str, Any]) -> None:
    """Draw the gates, and what is left by the share of streaming heads."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2), width_ratios=[1.3, 1, 1])
    axes[0].imshow(gates.T, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes[0].set(xlabel="layer", ylabel="key head", yticks=range(gates.shape[1]))
    axes[0].set_title("gates: dark heads need the whole context")
    colours = {
        "gates": INK,
        "retrieval": ACCENT,
        "outside": LIGHT,
        "random": GREY,
        "reversed": WARM,
    }
    for axis, measure, title in (
        (axes[1], "recalled", "passkey tokens recalled"),
        (axes[2], "text_loss", "loss on text, nats"),
    ):
        for name, colour in colours.items():
            means = [sum(one[measure] for one in row) / len(row) for row in found[name]]
            axis.plot(SHARES, means, "o-", color=colour, label=name, markersize=3)
        axis.set(xlabel="share of heads that stream")
        axis.set_title(title)
    axes[1].legend()
    save_figure(figure, "streaming")


def main() -> None:
    """Optimise the gates, sweep, and write streaming.json and streaming.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--texts", type=int, default=2, help="of each kind, to measure the cost on")
    parser.add_argument("--penalties", type=float, nargs="*", default=PENALTIES)
    parser.add_argument("--draws", type=int, default=2, help="random orders")
    given = parser.parse_args()
    numbers = Numbers("streaming")
    model, tokenizer = smollm2()
    # Without the title page.
    passkeys = Passkeys(tokenizer, book("lcet10")[4_000:], book("plrabn12"))
    held_out = passkeys.batch(range(given.texts))
    text = windows(tokenizer, "alice29", (given.texts + 1) // 2, LENGTH).to(device())
    texts = {"passkeys": held_out, "text": text, "labels": labels_from(text, LENGTH // 4)}

    by_penalty = {one: optimise(model, passkeys, given.steps, one) for one in given.penalties}
    gates, course = by_penalty[given.penalties[0]]
    # Kept before the sweep, which takes as long again.
    numbers.write(gates=gates, course=course)
    cheap = cheap_measures(model, passkeys.batch(range(5_000, 5_002))[0])
    generator = torch.Generator().manual_seed(0)
    orders = {
        "gates": [gates],
        **{name: [scores] for name, scores in cheap.items()},
        "random": [torch.rand(gates.shape, generator=generator) for _ in range(given.draws)],
        "reversed": [-gates],
    }
    found = sweep(model, texts, orders)
    flat = gates.flatten().tolist()
    numbers.write(
        length=LENGTH,
        steps=given.steps,
        texts=given.texts,
        gates=gates,
        course=course,
        cheap=cheap,
        open=sum(one > 0.5 for one in flat),
        penalties={
            one: {
                "open": int((own > 0.5).sum()),
                "distance": sum(row[0] for row in own_course[-20:]) / 20,
                "spearman": spearman(flat, own.flatten().tolist()),
            }
            for one, (own, own_course) in by_penalty.items()
        },
        spearman={
            name: spearman(flat, scores.flatten().tolist()) for name, scores in cheap.items()
        },
        shares=list(SHARES),
        cost=found,
    )
    draw(gates, found)


if __name__ == "__main__":
    main()
