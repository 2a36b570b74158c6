"""Properties of decoding with every model: alone or in a batch, streamed or not, packed or not, sampled or greedy."""

from importlib import import_module
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import telescope as ts
from support.needs import need_data
from support.replaying import replayed_steps
from support.writers import GPTS, KINDS, WORDS, made, prompts
from telescope.decoding import IncrementalDecoder, beam, generate, stream
from telescope.decoding import writers as writing
from telescope.decoding.generate import draw_noise
from telescope.decoding.sampling import draw, greedy, largest, min_p, temperature, top_k, top_p
from telescope.decoding.writers import start_writer
from telescope.layers import Attend
from telescope.models import GPT, GPTConfig

captured = import_module("telescope.decoding.generate")  # `decoding.generate` is the function

N = 18
every_kind = pytest.mark.parametrize("kind", KINDS)
SAMPLED = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2}


# ---------------------------------------------------------------------------------------------------- batch and alone


@every_kind
@pytest.mark.parametrize("how", [{"temperature": 0.0}, {}, SAMPLED], ids=["greedy", "sampled", "filtered"])
def test_a_prompt_in_a_batch_is_continued_as_alone(kind, how):
    model, texts = made(kind, end=()), prompts()
    free = generate(model, texts, max_new_tokens=N, seed=11, **how)
    how = how | {"end": [free[i].ids[3 * i + 1] for i in range(4)]}
    together = generate(model, texts, max_new_tokens=N, seed=11, **how)
    alone = [generate(model, [ids], max_new_tokens=N, seed=11 + i, **how)[0] for i, ids in enumerate(texts)]
    assert together == alone
    if how.get("temperature") != 0.0:  # greedy ones repeat themselves
        assert len({len(line.ids) for line in together}) > 1  # some end, and the batch shrinks
    assert not any(0 in line.ids for line in together)


@every_kind
def test_a_beam_search_in_a_batch_equals_one_alone(kind):
    model, texts = made(kind), prompts()
    together = beam(model, texts, beams=4, n_best=4, max_new_tokens=N, length_penalty=0.5)
    for ids, best in zip(texts, together, strict=True):
        (alone,) = beam(model, [ids], beams=4, n_best=4, max_new_tokens=N, length_penalty=0.5)
        assert [found.ids for found in alone] == [found.ids for found in best]
        assert_close([found.score for found in alone], [found.score for found in best], rtol=0.0, atol=1e-5)


@every_kind
def test_greedy_equals_the_argmax_without_a_cache(kind):
    """Without a cache: the whole text is read again for every token."""
    model, (ids,) = made(kind, end=()), prompts([6])
    (line,) = generate(model, ids, max_new_tokens=12, temperature=0.0)
    model.eval()
    written = [] if kind in GPTS else [0]
    for token in line.ids:
        so_far = torch.tensor([ids + written if kind in GPTS else written])
        logits = model(so_far) if kind in GPTS else model(torch.tensor([ids]), so_far)
        logits[..., 0] = -torch.inf
        assert int(logits[0, -1].argmax()) == token
        written.append(token)


# ------------------------------------------------------------------------------------------------------------- beams


@every_kind
def test_one_beam_equals_greedy(kind):
    model, texts = made(kind), prompts()
    lines = generate(model, texts, max_new_tokens=N, temperature=0.0)
    assert [best[0].ids for best in beam(model, texts, beams=1, max_new_tokens=N)] == [line.ids for line in lines]


@every_kind
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beams_are_sorted_and_have_the_scores_of_the_model(kind, length_penalty):
    model, texts = made(kind), prompts([4, 7])
    found = beam(model, texts, beams=5, n_best=5, max_new_tokens=9, length_penalty=length_penalty)
    model.eval()
    for ids, best in zip(texts, found, strict=True):
        scores = [text.score for text in best]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(text.ids) for text in best}) == 5
        for text in best:
            before = ids if kind in GPTS else [0]
            whole = torch.tensor([before + text.ids[:-1]])
            logits = model(whole) if kind in GPTS else model(torch.tensor([ids]), whole)
            log_p = logits[0, len(before) - 1 :].log_softmax(-1)[range(len(text.ids)), text.ids].sum()
            assert text.score == pytest.approx(log_p.item() / len(text.ids) ** length_penalty, abs=1e-4)


def test_an_exhaustive_beam_search_finds_the_best_text():
    """Two tokens of a vocabulary of six, 36 beams: every text is searched."""
    model = GPT(GPTConfig(vocabulary=6, max_positions=8, d_model=8, blocks=1, heads=2)).double()
    nn.init.normal_(model.embedding.weight, std=1.0)
    (best,) = beam(model, [[1, 2]], beams=36, n_best=36, max_new_tokens=2, end=())
    first = model(torch.tensor([[1, 2]]))[0, -1].log_softmax(-1)
    all_texts = {
        (a, b): (first[a] + model(torch.tensor([[1, 2, a]]))[0, -1].log_softmax(-1)[b]).item() / 2
        for a in range(6)
        for b in range(6)
    }
    assert [tuple(text.ids) for text in best] == sorted(all_texts, key=lambda ids: -all_texts[ids])


# ---------------------------------------------------------------------------------------------------------- streaming


@every_kind
@pytest.mark.parametrize("how", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "filtered"])
def test_stream_equals_generate(kind, how):
    model, (ids,) = made(kind), prompts([6])
    (line,) = generate(model, [ids], max_new_tokens=N, seed=4, **how)
    assert [token.id for token in stream(model, ids, max_new_tokens=N, seed=4, **how)] == line.ids


def test_a_stream_comes_token_by_token():
    model, steps = made("learned", end=()), []
    model.norm.register_forward_hook(lambda *_: steps.append(1))
    written = stream(model, [5, 6], max_new_tokens=N)
    assert len(steps) == 0
    for count in range(1, 4):
        next(written)
        assert len(steps) == count


# ------------------------------------------------------------------------------------------------------------ samples


@every_kind
def test_samples_depend_on_the_seed_and_the_row_alone(kind):
    model, texts = made(kind, end=()), prompts([4, 4])
    lines = generate(model, texts, max_new_tokens=N, seed=7)
    assert generate(model, texts, max_new_tokens=N, seed=7) == lines
    assert (
        generate(model, texts, max_new_tokens=N, seed=8)[0].ids
        == generate(model, texts[:1], max_new_tokens=N, seed=8)[0].ids
    )
    assert generate(model, texts, max_new_tokens=N, seed=9) != lines
    longer = generate(model, texts, max_new_tokens=N + 7, seed=7)
    assert [line.ids[:N] for line in longer] == [line.ids for line in lines]
    same = generate(model, [texts[0]] * 2, max_new_tokens=N, seed=7)
    assert same[0].ids != same[1].ids


def expected(logits, *, t=1.0, k=None, p=1.0, least=0.0):
    """Return the filtered distribution, computed one token at a time."""
    probabilities = (logits / t).softmax(-1).tolist()
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:k]
    total, before, kept = sum(probabilities[i] for i in order), 0.0, []
    for i in order:
        if before < p:
            kept.append(i)
        before += probabilities[i] / total
    kept = [i for i in kept if probabilities[i] >= least * probabilities[order[0]]]
    whole = sum(probabilities[i] for i in kept)
    return torch.tensor([probabilities[i] / whole if i in kept else 0.0 for i in range(len(probabilities))])


@pytest.mark.parametrize(
    "options",
    [{}, {"t": 0.5}, {"t": 2.0, "k": 5}, {"p": 0.6}, {"least": 0.3}, {"t": 0.7, "k": 9, "p": 0.8, "least": 0.1}],
)
def test_frequencies_of_samples(options):
    draws = 20_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(2)) * 1.5
    made_of = {"t": temperature, "k": top_k, "p": top_p, "least": min_p}
    filters = [made_of[name](value) for name, value in options.items()]
    tokens = draw(logits.expand(draws, -1), filters, draw_noise(1, draws, seed=1)[0])
    counts, truth = torch.bincount(tokens, minlength=12), expected(logits, **options)
    assert bool((counts[truth == 0.0] == 0).all())
    likely = truth > 0.0
    chi_square = ((counts - draws * truth)[likely] ** 2 / (draws * truth[likely])).sum()
    assert chi_square < 31.3  # 0.1 % of 11 degrees of freedom


def test_draws_at_the_ends_of_the_unit_interval():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 0.5, -torch.inf]])
    assert draw(logits, [], torch.tensor([0.0])).tolist() == [0]
    assert draw(logits, [], torch.tensor([1.0])).tolist() == [3]
    assert draw(logits, [top_k(2)], torch.tensor([1.0])).tolist() == [3]


def test_a_very_small_temperature_is_greedy():
    model, texts = made("llama"), prompts()
    assert generate(model, texts, temperature=1e-6, max_new_tokens=N) == generate(
        model, texts, temperature=0.0, max_new_tokens=N
    )
    assert generate(model, texts, top_k=1, max_new_tokens=N) == generate(
        model, texts, temperature=0.0, max_new_tokens=N
    )


@pytest.mark.parametrize("n", [1, 63, 64, 700, 1000, 4099])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_largest_equals_topk(n, k):
    numbers = torch.randn(4, n, generator=torch.Generator().manual_seed(n))
    assert_close(largest(numbers, k), tuple(numbers.topk(min(k, n))))
    assert_close(greedy(numbers), numbers.argmax(-1))


# ---------------------------------------------------------------------------------------------------- text and stops


@pytest.fixture(scope="module")
def spelling():
    """Return a GPT whose tokens are bytes, so that a token may be half a character."""
    model = GPT(GPTConfig(vocabulary=256, max_positions=64, d_model=16, blocks=1, heads=2)).double()
    letters = pre_tokenizers.ByteLevel.alphabet()
    model.tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(sorted(letters))}, merges=[]))
    model.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.tokenizer.decoder = decoders.ByteLevel()
    return model


def says(model, text):
    """Set the weights so that the model writes this text after any prompt: position i predicts token i."""
    ids = model.tokenizer.encode(text).ids
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.norm.weight.fill_(1.0)
        codes = nn.functional.normalize(
            torch.randn(256, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        )
        codes = nn.functional.layer_norm(codes, (16,))
        model.embedding.weight.copy_(codes * 1e-3)
        model.positions.P[: len(ids)] = codes[ids]
    return ids


@pytest.mark.parametrize(
    ("stop", "text", "why"),
    [
        ((), "Grüße, 😀 world", "length"),
        ("world", "Grüße, 😀 ", "stop"),
        (["nothing", "ü"], "Gr", "stop"),
        (["worlds", "ld!"], "Grüße, 😀 world", "length"),
        (["😀 w", "e"], "Grüß", "stop"),
        (["ld", "world"], "Grüße, 😀 ", "stop"),
    ],
)
def test_stop_strings_that_span_tokens(spelling, stop, text, why):
    ids = says(spelling, "Grüße, 😀 world")
    (line,) = generate(spelling, "H", max_new_tokens=len(ids), temperature=0.0, stop=stop)
    assert (line.text, line.why) == (text, why)
    assert line.ids == ids[: len(line.ids)]
    pieces = [token.text for token in stream(spelling, "H", max_new_tokens=len(ids), temperature=0.0, stop=stop)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_incomplete_character_at_the_end_is_held_back(spelling):
    ids = says(spelling, "aü")
    (line,) = generate(spelling, "H", max_new_tokens=len(ids) - 1, temperature=0.0)
    assert line.ids == ids[:-1]
    assert (line.text, spelling.tokenizer.decode(line.ids)) == ("a", "a\ufffd")


def test_bytes_that_are_no_character_are_left_out(spelling):
    """What a hardly trained model writes: continuations without a first byte, before text and after it."""
    continuation = spelling.tokenizer.encode("ü").ids[1]
    (letter,) = spelling.tokenizer.encode("a").ids
    decoder = IncrementalDecoder(spelling.tokenizer, ())
    pieces = [decoder.add(token) for token in (continuation, continuation, letter, continuation)]
    assert pieces == ["", "", "a", ""]
    assert decoder.flush() == ""


def test_text_is_what_follows_the_prompt():
    """With the space between them, which a tokenizer strips where a text begins."""
    model = ts.load(need_data("stories260K"))
    (line,) = generate(model, "Once upon a time, there", max_new_tokens=6, temperature=0.0)
    assert line.text == " was a little girl"
    assert line.text == "".join(
        token.text for token in stream(model, "Once upon a time, there", max_new_tokens=6, temperature=0.0)
    )


# ------------------------------------------------------------------------------------------------- what a step costs


@pytest.mark.parametrize("kind", ["learned", "llama", "transformer"])
@torch.no_grad()
def test_the_cost_of_a_step_is_linear_in_the_length(kind):
    """The work grows by the same amount with each token: O(n), where reading all tokens again would be O(n²)."""
    model, work = made(kind), []
    writer = start_writer(model, prompts([3]), 40)
    for _ in range(30):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # which is counted
            writer.step(torch.tensor([5]))
        work.append(counter.get_total_flops())
    growth = {b - a for a, b in pairwise(work)}
    heads_times_d = 16
    assert growth == {2 * 2 * 2 * heads_times_d}  # blocks · (q·k and weights·v) · 2 · heads · d for one key more


@pytest.mark.parametrize("kind", ["learned", "llama"])
def test_the_memory_of_a_cache_equals_the_formula(kind):
    model = made(kind).float()
    writer = start_writer(model, prompts([3, 7]), 20)
    config = model.config
    room, key_heads = 7 + 20, config.key_heads or config.heads
    rooms = [tensor for room in writer.cache.rooms for tensor in (room.keys, room.values)]
    assert sum(tensor.untyped_storage().nbytes() for tensor in rooms) == 2 * 2 * key_heads * room * config.width * 4 * 2


@pytest.mark.parametrize("kind", ["transformer", "luong"])
def test_beams_share_their_source(kind):
    writer = start_writer(made(kind), prompts([3, 7]), 20, 5)
    writer.reorder(torch.arange(2).repeat_interleave(5))
    with torch.no_grad():
        assert writer.step(torch.full((10,), 5)).shape == (10, WORDS)
    assert (writer.cache.batch, writer.cache.sources) == (10, 2)


# --------------------------------------------------------------------------------------------------- packed, and still


@every_kind
def test_packed_matrices_write_the_same_text(kind, monkeypatch):
    model, texts = made(kind).float(), prompts()
    plain = generate(model, texts, max_new_tokens=N, temperature=0.0), beam(model, texts, beams=3, max_new_tokens=N)
    used = []
    pack = writing.PackedLinear.__call__
    monkeypatch.setattr(writing, "MIN_NUMBERS", 1)
    monkeypatch.setattr(writing.PackedLinear, "__call__", lambda self, x: used.append(self) or pack(self, x))
    packed = generate(model, texts, max_new_tokens=N, temperature=0.0), beam(model, texts, beams=3, max_new_tokens=N)
    assert [line.ids for line in packed[0]] == [line.ids for line in plain[0]]
    assert [best[0].ids for best in packed[1]] == [best[0].ids for best in plain[1]]
    assert any(product.packed is not None for product in used)


@every_kind
def test_the_model_is_left_as_it_was(kind):
    model = made(kind)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    generate(model, prompts(), max_new_tokens=N)
    assert model.training
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad_fn is None and parameter.requires_grad for parameter in model.parameters())


def test_hooks_run_while_decoding():
    model, seen = made("llama", end=()), []
    model.blocks[0].self_attention.attend.register_forward_hook(lambda _, inputs, __: seen.append(inputs[1].shape[2]))
    generate(model, [[5, 6, 7]], max_new_tokens=4)
    assert seen == [3, 4, 5, 6]


# ------------------------------------------------------------------------------------------------- as on a GPU


@pytest.mark.parametrize("kind", GPTS)
@pytest.mark.parametrize("how", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "filtered"])
def test_fixed_shapes_write_the_same_text(kind, how, monkeypatch):
    model, texts = made(kind), prompts()
    plain = generate(model, texts, max_new_tokens=N, **how)
    lengths = []
    attend = Attend.forward

    def noting(self, queries, keys, *others, **options):
        lengths.append(keys.shape[2])
        return attend(self, queries, keys, *others, **options)

    monkeypatch.setattr(Attend, "forward", noting)
    with replayed_steps():
        assert generate(model, texts, max_new_tokens=N, **how) == plain
    lengths = lengths[2:]  # without those of the prompt, in two blocks
    assert len(set(lengths)) == 1


def test_a_step_that_cannot_be_captured_runs_eagerly(monkeypatch):
    """As here, where there is no GPU; the reason is kept."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    model, made_of = made("llama"), []
    plain = generate(model, prompts(), max_new_tokens=N)
    monkeypatch.setattr(captured, "is_worth_capturing", lambda *_: True)
    monkeypatch.setattr(captured.CapturedFunction, "_capture", broken(made_of))
    assert generate(model, prompts(), max_new_tokens=N) == plain
    assert made_of[0].failure == "no graph"


def broken(made_of):
    def capture(self, inputs):
        made_of.append(self)
        self.failure = "no graph"

    return capture
