"""stories260K, a small Llama of llama2.c, writes the text that llama2.c publishes."""

import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import telescope as ts
from support.needs import need_data

# of llama2.c's test_all.py: ./run stories260K.bin -z tok512.bin -t 0.0 -n 200
PUBLISHED = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\n"
    "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. She said, \"I want to "
    "play with your ball, but I can't find it.\"\n"
    "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\n"
    "Lily didn't want to help her mom, so she"
)


@pytest.fixture(scope="module")
def stories():
    return ts.load(need_data("stories260K"))


@torch.no_grad()
def greedy(model, tokens):
    ids, cache = torch.tensor([[model.special.start]]), model.cache(room=tokens)
    written = [model.special.start]
    for _ in range(tokens):
        ids = model(ids, cache=cache)[:, -1:].argmax(-1)
        written.append(int(ids))
    return model.tokenizer.decode(written)


def test_200_tokens_are_the_published_text(stories):
    assert greedy(stories, 200) == PUBLISHED


def test_generate_and_stream_write_the_published_text(stories):
    how = {"max_new_tokens": 200, "temperature": 0.0, "end": ()}
    start = [stories.special.start]
    (line,) = ts.decoding.generate(stories, [start], **how)
    assert (line.text, len(line.ids), line.why) == (PUBLISHED, 200, "length")
    assert "".join(token.text for token in ts.decoding.stream(stories, start, **how)) == PUBLISHED


def test_a_saved_copy_writes_the_same_text(stories, tmp_path):
    stories.save(tmp_path / "saved")
    assert PUBLISHED.startswith(greedy(ts.load(tmp_path / "saved"), 30))


def test_an_export_to_transformers_writes_the_same_text(stories, tmp_path):
    """Llama in transformers pairs halves where llama2.c pairs neighbours."""
    transformers = pytest.importorskip("transformers")
    ts.export(stories, tmp_path / "exported")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    ids = theirs.generate(torch.tensor([[1]]), max_new_tokens=200, do_sample=False)
    assert tokenizer.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False) == PUBLISHED


def test_sizes_are_those_of_the_header(stories):
    config = stories.config
    assert (config.d_model, config.d_hidden, config.blocks, config.heads) == (64, 172, 5, 8)
    assert (config.key_heads, config.vocabulary, config.max_positions, config.tied) == (4, 512, 512, True)
    assert sum(parameter.numel() for parameter in stories.parameters()) == 260_032


def test_the_file_itself_can_be_named(stories):
    again = ts.load(need_data("stories260K") / "stories260K.bin", dtype=torch.float64)
    assert again.tokenizer is not None
    assert all(torch.equal(a, b.double()) for a, b in zip(again.parameters(), stories.parameters(), strict=True))


# ------------------------------------------------------------------------------------------------------ the tokenizer


@pytest.fixture(scope="module")
def pieces():
    contents, at, found = (need_data("stories260K") / "tok512.bin").read_bytes(), 4, []
    while at < len(contents):
        score, length = struct.unpack_from("<fi", contents, at)
        found.append((contents[at + 8 : at + 8 + length].decode(), score))
        at += 8 + length
    return found


def as_in_c(text, pieces):
    """Encode as llama2.c does: characters, or bytes where there is no such piece; then join the best pair."""
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    written = [ids[" "]] if text else []
    for character in text:
        written += [ids[character]] if character in ids else [byte + 3 for byte in character.encode()]
    while True:
        pairs = [ids.get(pieces[a][0] + pieces[b][0]) for a, b in pairwise(written)]
        at = max((i for i, pair in enumerate(pairs) if pair), key=lambda i: pieces[pairs[i]][1], default=None)
        if at is None:
            return [1, *written]
        written[at : at + 2] = [pairs[at]]


SNIPPETS = ["Once upon a time", " the", "  ", "\n", "<s>", "</s>", "<unk>", "<0x41>", "é", "–", "😀", "\t", "ing", "x"]
NAMES = ("\n<s>\n", "\n</s>\n")  # of the special pieces, which a tokenizer finds in a text; llama2.c does not
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=6), max_size=8).map("".join)
TEXTS = TEXTS.filter(lambda text: not any(name in text for name in NAMES))


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS.filter(lambda text: "\n<s>\n" not in text and "\n</s>\n" not in text)
)  # which are its specials' names
def test_text_is_encoded_as_in_c(stories, pieces, text):
    assert stories.tokenizer.encode(text).ids == as_in_c(text, pieces)


@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_text_comes_back(stories, text):
    assert stories.tokenizer.decode(stories.tokenizer.encode(text).ids) == text
