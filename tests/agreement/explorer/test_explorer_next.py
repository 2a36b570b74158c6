"""What the page shows of the next token: probabilities of words by hand, draws, and texts that are drawn."""

from math import prod

import pytest
import torch

from support import writers
from support.exploring import api, got, read
from telescope.decoding import generate
from telescope.explorer.api import Api
from telescope.explorer.library import Library
from telescope.explorer.next_tokens import draw_token, random_number

FIVE = (
    "The astronomers of the old observatory discovered a new comet.",
    "Two dogs are playing in the snow.",
    "The man saw the astronomer with a telescope.",
    "A woman sells oranges at the market.",
    "The lighthouse keeper counted seventeen fishing boats.",
)
SIGNS = ("Ġ", "▁", "Ċ", "Ã")  # what tokenizers write for a space, a line break, a byte


@pytest.fixture(scope="module")
def shipped():
    return Api(Library())


def by_hand(model, run):
    """Return the log-probability of every written token, from one plain call of the model."""
    output = run.output
    ids = torch.tensor([[model.special.start, *output.written[:-1]]])
    with torch.no_grad():
        logits = model(torch.tensor([list(output.source)]), ids)[0].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(output.written)[:, None])[:, 0]


@pytest.mark.parametrize("text", FIVE)
def test_the_probability_of_a_word_is_the_product_of_its_pieces(shipped, text):
    run = shipped.library.read(text, "translator-en-de")
    logs = by_hand(run.output.model, run)
    several = 0
    for word in run.describe().output.words:
        wanted = prod(logs[at].exp().item() for at in range(word.first, word.i + 1))
        several += word.i > word.first
        for place in range(word.first, word.i + 1):  # whichever piece is chosen
            shown = got(shipped, f"/runs/{run.name}/output", i=place)
            assert shown["word"]["name"] == word.name
            assert shown["word"]["p"] == pytest.approx(wanted, rel=1e-5)
            assert [one["i"] for one in shown["word"]["pieces"]] == [*range(word.first, word.i + 1)]
            # The candidate that was written is one piece of it.
            chosen = next(one for one in shown["candidates"] if one["id"] == shown["id"])
            assert chosen["p"] == pytest.approx(logs[place].exp().item(), rel=1e-5)
    # The same numbers before a change of the attention, and without one after it.
    same = got(shipped, f"/runs/{run.name}/whatif", l=len(run.views) - 1, h=0, i=0, edits="t:1")["output"]["words"]
    assert [one["before"] for one in same] == pytest.approx(
        [prod(logs[at].exp().item() for at in range(one["first"], one["i"] + 1)) for one in same], rel=1e-5
    )
    assert several or text != FIVE[4]


def test_no_sign_of_a_tokenizer_is_shown(shipped):
    """The likeliest tokens of every piece, the tokens of every attention: a lone space is ␣."""
    for text in FIVE:
        run = shipped.library.read(text, "translator-en-de")
        shown = [
            one["text"]
            for i in range(run.describe().output.n)
            for one in got(shipped, f"/runs/{run.name}/output", i=i)["candidates"]
        ]
        for layer, _ in enumerate(run.views):
            for axis in "qk":
                shown += got(shipped, f"/runs/{run.name}/tokens", l=layer, axis=axis)["tokens"]
        assert not [text for text in shown if text.startswith(SIGNS)]
        assert all(shown)
    run = shipped.library.read(FIVE[0], "translator-en-de")
    assert "␣" in [one["text"] for one in got(shipped, f"/runs/{run.name}/output", i=3)["candidates"]]


def test_what_a_gpt_read_next_is_among_the_candidates():
    run = read(api(), "To be or not", model="gpt")["run"]
    read_next = [got(api(), f"/runs/{run}/output", i=i) for i in range(12)]
    assert "".join(one["chosen"].replace("␣", " ") for one in read_next[:-1]) == "o be or not"
    assert (read_next[-1]["chosen"], read_next[-1]["id"]) == (None, None)
    for one in read_next[:-1]:
        assert [row["id"] for row in one["candidates"]].count(one["id"]) == 1
        assert len(one["candidates"]) in (10, 11)


# ------------------------------------------------------------------------------------------- draws


def test_a_draw_by_hand():
    p = torch.tensor([0.2, 0.5, 0.0, 0.3], dtype=torch.float64)
    # In the order of probabilities: 1 up to 0.5, 3 up to 0.8, 0 up to 1.
    drawn = [draw_token(p, u) for u in (0.0, 0.49, 0.5, 0.79, 0.81, 1 - 1e-17)]
    assert [one.token for one in drawn] == [1, 1, 3, 3, 0, 0]
    assert [one.below for one in drawn] == pytest.approx([0, 0, 0.5, 0.5, 0.8, 0.8])
    # Rounding: the sum of all may stay below the random number; a token of probability 0 is never drawn.
    assert draw_token(p * 0.9, 0.95).token == 0


def test_draws_follow_the_distribution():
    p = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    counts = torch.zeros(3)
    for seed in range(4000):
        counts[draw_token(p, random_number(seed, 0)).token] += 1
    # Four standard errors of a share of 0.6 among 4,000 are 0.031.
    assert (counts / 4000).tolist() == pytest.approx(p.tolist(), abs=0.031)


def test_random_numbers_of_a_seed_do_not_depend_on_how_many_are_drawn():
    assert [random_number(7, at) for at in range(20)] == [random_number(7, at) for at in range(20)]
    assert len({random_number(7, at) for at in range(20)}) == 20
    assert all(0 <= random_number(seed, 3) < 1 for seed in range(200))


def test_a_drawn_token_can_be_checked_with_the_shown_probabilities(shipped):
    run = shipped.library.read(FIVE[0], "translator-en-de")
    settings = {"temperature": 1.5, "top_k": 9, "i": 3}
    shown = {one["id"]: one for one in got(shipped, f"/runs/{run.name}/output", **settings)["candidates"]}
    seen = set()
    for seed in range(60):
        answer = got(shipped, f"/runs/{run.name}/draw", **settings, seed=seed)
        drawn = answer["drawn"]
        assert answer == got(shipped, f"/runs/{run.name}/draw", **settings, seed=seed)
        assert drawn["below"] <= drawn["u"] < drawn["below"] + drawn["p"]
        # top_k=9: one of the ten that are shown, with the probability that is shown.
        assert drawn["p"] == pytest.approx(shown[drawn["id"]]["p"], rel=1e-6)
        likelier = [one["p"] for one in shown.values() if one["p"] > drawn["p"] and one["id"] != drawn["id"]]
        assert drawn["below"] == pytest.approx(sum(likelier), abs=1e-6)
        seen.add(drawn["id"])
    assert len(seen) > 3
    assert {got(shipped, f"/runs/{run.name}/draw", i=3, top_k=1, seed=seed)["drawn"]["id"] for seed in range(9)} == {
        next(iter(shown))
    }


def test_a_text_is_written_on_token_by_token():
    """In pieces as at once; at first the token that `draw` draws; greedy text is that of `generate`."""
    run = read(api(), "To be or not", model="gpt")["run"]
    path = f"/runs/{run}/write"
    whole = got(api(), path, seed=3, temperature=0.8)
    assert len(whole["drawn"]) == 16
    assert whole["drawn"][0] == got(api(), f"/runs/{run}/draw", seed=3, temperature=0.8)["drawn"]
    ids = [one["id"] for one in whole["drawn"]]
    rest = got(api(), path, seed=3, temperature=0.8, after=",".join(map(str, ids[:5])), count=11)
    assert rest["drawn"] == whole["drawn"][5:]
    assert got(api(), path, seed=4, temperature=0.8)["drawn"] != whole["drawn"]
    model = writers.gpt(max_positions=64)
    greedy = generate(model, "To be or not", max_new_tokens=16, temperature=0)[0].text
    assert "".join(one["append"] for one in got(api(), path, top_k=1)["drawn"]) == greedy


def test_writing_ends_where_the_model_reads_no_more():
    run = read(api(), "a" * 60, model="gpt")["run"]
    answer = got(api(), f"/runs/{run}/write", seed=1)
    assert (len(answer["drawn"]), answer["ended"]) == (4, "length")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": 10**9}, "seed=1000000000"),
        ({"seed": "x"}, "not a whole number"),
        ({"count": 17}, "count=17"),
        ({"count": 0}, "count=0"),
        ({"after": "1;2"}, "ids of tokens"),
        ({"after": "999999"}, "id beyond"),
        ({"after": "1," * 600 + "1"}, "ids of tokens"),
        ({"temperature": 0}, "temperature"),
    ],
)
def test_requests_to_write_that_do_not_fit(asked, said):
    run = read(api(), "To be or not", model="gpt")["run"]
    answer = api().answer("GET", f"/runs/{run}/write", {name: str(value) for name, value in asked.items()})
    assert answer.status == 400
    assert said in answer.refusal.message


def test_a_translator_does_not_write_on():
    run = read(api(), "Good morning.", model="learnt")["run"]
    answer = api().answer("GET", f"/runs/{run}/write", {})
    assert answer.status == 409
    assert "draw a token at one of its pieces" in answer.refusal.message
    assert got(api(), f"/runs/{run}/draw", i=0, seed=5)["drawn"]["p"] > 0
