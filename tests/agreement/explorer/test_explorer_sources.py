"""The explorer's answers about sources are those of the recording."""

import json
import re
from pathlib import Path

import pytest
import torch

import telescope as ts
from support import writers
from support.exploring import api, got, read, recorded, serving
from telescope.decoding.writers import start_token
from telescope.explorer.context import Cuttable
from telescope.recording.source_question import read_segments


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=26, d_model=16, blocks=2, heads=2)).eval()
    with ts.watch(model, keep="queries-keys", also="norms") as recording, torch.no_grad():
        model(torch.arange(24)[None])
    recording.decode = lambda ids: "".join(f" {chr(97 + i)}" for i in ids)
    return recording, *serving(recording)


@pytest.mark.parametrize("how", ["weights", "carried", "rollout"])
def test_numbers_of_the_recording(run, how):
    recording, server, name = run
    answer = got(server, f"/runs/{name}/sources", first=18, end=22, how=how, cuts="0,5,12", start=3, stop=9)
    found = recording.sources((18, 22), how, segments=[0] * 5 + [1] * 7 + [2] * 6)
    assert {row["name"]: row["share"] for row in answer["rows"]} == pytest.approx(found.shares, rel=1e-6)
    assert answer["scores"] == [float(f"{score:.7g}") for score in found.scores[3:9].tolist()]
    assert answer["tokens"] == [" d", " e", " f", " g", " h", " i"]
    assert answer["answer"] == [" s", " t", " u", " v"]
    assert sum(answer["overview"]) == pytest.approx(float(found.scores.sum()))
    assert answer["n"] == 18


def test_a_long_text_has_an_overview():
    server, name = serving(recorded(3_000))
    answer = got(server, f"/runs/{name}/sources", first=2_990, end=3_000, start=100, stop=110)
    assert len(answer["overview"]) == 512
    assert len(answer["rows"]) == 200
    assert answer["more"] == 2_990 + 1 - 200
    assert len(answer["tokens"]) == 10


def test_a_translation_reads_its_source():
    server = api()
    name = read(server, "Good morning.", model="learnt")["run"]
    for how in ("weights", "carried", "rollout"):
        answer = got(server, f"/runs/{name}/sources", first=1, end=3, how=how)
        assert sum(row["share"] for row in answer["rows"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("path", "parameters", "status", "message"),
    [
        ("sources", {"first": "18", "end": "99"}, 400, "is not in the text"),
        ("sources", {"first": "18"}, 400, "end= is missing"),
        ("sources", {"first": "18", "end": "22", "how": "gradient"}, 409, "has no gradients of"),
        ("sources", {"first": "18", "end": "22", "how": "hidden"}, 409, "a recording holds none: type the text"),
        ("sources", {"first": "18", "end": "22", "cuts": "0,x"}, 400, "cuts= takes the positions"),
        ("sources", {"first": "18", "end": "22", "b": "4"}, 404, "there is no sequence 4"),
        ("sources", {"first": "18", "end": "18"}, 400, "holds no token"),
        ("sources", {"first": "0", "end": "2"}, 400, "begins at the first token"),
        ("sources", {"first": "18", "end": "22", "window": "0"}, 400, "window=0 tokens"),
        ("sources", {"first": "18", "end": "22", "low": "9", "high": "9"}, 400, "low=9, high=9 is not a range"),
        ("sources", {"first": "18", "end": "22", "by": "verse"}, 400, "known: pieces, words"),
        ("hidden", {"first": "18", "end": "22", "start": "1", "stop": "2"}, 409, "a recording holds none"),
    ],
)
def test_bad_requests(run, path, parameters, status, message):
    _, server, name = run
    answer = server.answer("GET", f"/runs/{name}/{path}", parameters)
    assert answer.status == status
    assert message in json.loads(answer.body)["error"]["message"]


# ---------------------------------------------------------------------------------------- sentences, which have a model


def recording_of(server, text, model_name, also):
    """Return the run of a text on the page, and a recording of the same model reading the same tokens."""
    run = read(server, text, model=model_name)["run"]
    output = server.library.run(run).output
    with ts.watch(output.model, keep="queries-keys", also=also) as recording:
        tokens = torch.tensor([list(output.ids)])
        source = torch.tensor([list(output.source)]) if output.source else None
        logits = output.model(tokens) if source is None else output.model(source, tokens)
        if "gradients" in also:
            rows, written = [2, 3], torch.tensor([[output.ids[3]], [output.ids[4]]])
            logits[0, rows].log_softmax(-1).gather(-1, written).sum().backward()
    recording.decode = None
    return run, output.model, recording


@pytest.mark.parametrize(("text", "model"), [("How are you?", "learnt"), ("To be, or not to be", "gpt")])
@pytest.mark.parametrize("how", ["weights", "carried", "rollout", "gradient", "hidden"])
def test_a_sentence_has_every_how(text, model, how):
    """The numbers are those of `recording.sources`, of the model that reads the same tokens, to 1e-6.

    What is hidden is measured by two runs: differences of log-probabilities in float32.
    """
    close = 1e-5 if how == "hidden" else 1e-6
    server = api()
    also = ("norms", "gradients") if how == "gradient" else ("norms",)
    run, module, recording = recording_of(server, text, model, also)
    module.zero_grad(set_to_none=True)
    answer = got(server, f"/runs/{run}/sources", first=3, end=5, how=how, by="words")
    starts = sorted(row["start"] for row in answer["rows"] if not row["own"])
    segments = [sum(start <= at for start in starts) - 1 for at in range(answer["n"])]
    found = recording.sources((3, 5), how, segments=segments, model=module if how == "hidden" else None)
    for of in ("score", "share"):
        wanted = {row.start: getattr(row, of) for row in found}
        assert {row["start"]: row[of] for row in answer["rows"]} == pytest.approx(wanted, abs=close)
    assert answer["rows"] == sorted(answer["rows"], key=lambda row: -row["score"])
    assert all(parameter.grad is None for parameter in module.parameters())

    # A user who trains the model keeps the gradients of that training.
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    got(server, f"/runs/{run}/sources", first=4, end=5, how=how, by="words")
    assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in module.parameters())


@pytest.mark.parametrize(("text", "model"), [("How are you?", "learnt"), ("To be, or not to be", "gpt")])
def test_hiding_one_segment_gives_the_fall_of_sources(text, model):
    server = api()
    run, module, recording = recording_of(server, text, model, ("norms",))
    answer = got(server, f"/runs/{run}/hidden", first=3, end=5, start=1, stop=3)
    (row,) = [
        row for row in recording.sources((3, 5), "hidden", segments={"it": (1, 3)}, model=module) if row.name == "it"
    ]
    assert answer["before"] - answer["after"] == pytest.approx(row.score, abs=1e-6)
    assert sum(token["before"] for token in answer["tokens"]) == pytest.approx(answer["before"], rel=1e-6)
    assert abs(row.score) > 1e-3
    (best, *_) = answer["likeliest"][0]["after"]
    assert answer["tokens"][0]["instead"] in (None, best["text"])


def test_hiding_changes_what_is_written():
    """The new translation is that of the model while the segment is hidden; the old one is that of the run."""
    server, module = api(), writers.learnt()
    run = read(server, "How are you?", model="learnt")["run"]
    source = torch.tensor([module.tokenizer.encode("How are you?").ids])
    last = source.shape[1] - 1
    answer = got(server, f"/runs/{run}/hidden", first=1, end=3, start=0, stop=last)
    assert answer["wrote"]["before"] == "Wie geht es dir?"
    output = server.library.run(run).output
    edits = [ts.hide(range(last), layers="*cross"), ts.hide(range(last), [last], layers="encoder.*")]
    with torch.no_grad(), ts.edit(module, *edits):
        states = module.hidden(source, torch.tensor([[start_token(module), *output.written[:-1]]]))
        (written,) = ts.decoding.beam(module, ["How are you?"], max_new_tokens=20)
    chances = module.logits(states)[0].detach().double().log_softmax(-1)
    total = float(chances[0, output.written[0]] + chances[1, output.written[1]])
    assert answer["after"] == pytest.approx(total, abs=1e-6)
    assert answer["wrote"]["after"] == written[0].text.strip() != "Wie geht es dir?"


def test_the_word_after_a_text_can_be_asked_for():
    """A GPT has not read it: it is the likeliest one, named, and its probability is that of the output."""
    server = api()
    run = read(server, "To be, or not to be", model="gpt")["run"]
    asked = got(server, f"/runs/{run}/answer")
    first, end = asked["span"]
    assert end == asked["ends"] == first + 1
    likeliest = got(server, f"/runs/{run}/output")["candidates"][0]
    assert asked["tokens"][-1].strip() == likeliest["text"].strip()
    hidden = got(server, f"/runs/{run}/hidden", first=first, end=end, start=2, stop=4)
    assert torch.tensor(hidden["before"]).exp() == pytest.approx(likeliest["p"], abs=1e-6)


# ---------------------------------------------------------------------------------------------------- what can be asked


def test_what_was_generated_is_the_answer():
    """A recording that knows its prompt offers what comes after it alone; a span in the prompt is refused."""
    model = writers.gpt(max_positions=64)
    with ts.watch(model, keep="queries-keys") as recording:
        ts.decoding.generate(model, ["To be"], max_new_tokens=6, temperature=0)
    server, name = serving(recording)
    asked = got(server, f"/runs/{name}/answer")
    prompt = len(model.tokenizer.encode("To be").ids)
    assert asked["begins"] == asked["prompt"] == prompt
    assert asked["hows"]["weights"] is None
    assert 'also="norms"' in asked["hows"]["carried"]
    assert "telescope serve --model FOLDER" in asked["hide"]
    answer = server.answer("GET", f"/runs/{name}/sources", {"first": "2", "end": str(prompt + 1)})
    assert answer.status == 400
    assert "begins in the prompt" in json.loads(answer.body)["error"]["message"]


def test_summaries_name_the_flag():
    server, name = serving(recorded(40, keep="summaries"))
    asked = got(server, f"/runs/{name}/answer")
    assert "telescope watch --keep queries-keys, or ts.watch(keep=" in asked["hows"]["weights"]
    assert server.answer("GET", f"/runs/{name}/sources", {"first": "30", "end": "31"}).status == 409


def test_a_model_that_reads_a_whole_text_has_no_sources():
    server, name = serving(recorded(12, attention=ts.Attention()))
    assert "writes none" in got(server, f"/runs/{name}/answer")["why"]
    answer = server.answer("GET", f"/runs/{name}/sources", {"first": "3", "end": "4"})
    assert answer.status == 409
    assert "writes none" in json.loads(answer.body)["error"]["message"]


def test_a_segment_outside_of_the_context_cannot_be_hidden():
    server = api()
    name = read(server, "To be, or not to be", model="gpt")["run"]
    for start, stop in ((3, 3), (2, 9), (-1, 2)):
        parameters = {"first": "4", "end": "5", "start": str(start), "stop": str(stop)}
        answer = server.answer("GET", f"/runs/{name}/hidden", parameters)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "bad-parameter")


# ----------------------------------------------------------------------------------------------------------- long texts


def test_a_part_of_a_long_text_is_summed_again():
    """Bins of a part of a text are sums of its scores; the tokens sent are those around its strongest segment."""
    recording = recorded(3_000)
    server, name = serving(recording)
    ask = {"first": 2_990, "end": 3_000, "by": "parts", "window": 200}
    scores = recording.sources((2_990, 3_000)).scores
    part = got(server, f"/runs/{name}/sources", **ask, low=500, high=1_524)
    assert part["overview"] == pytest.approx(scores[500:1_524].view(512, 2).sum(1).tolist(), rel=1e-6)
    strongest = next(row for row in part["rows"] if row["start"] < 1_524 and row["stop"] > 500)
    assert part["start"] <= (strongest["start"] + strongest["stop"]) // 2 < part["stop"]
    assert part["counts"]["parts"] == 64
    centred = got(server, f"/runs/{name}/sources", **ask, centre=700)
    assert (centred["start"], centred["stop"]) == (600, 800)
    assert len(json.dumps(centred)) < 100_000


class Shown:
    """A text as a view of the explorer: each token is a piece of the text."""

    def __init__(self, *tokens):
        self.pieces, self.kind, self.decode = tokens, "self", lambda ids: "".join(tokens[i] for i in ids)
        self.call = type("Call", (), {"size": (len(tokens), len(tokens))})

    def words(self, axis):
        return None

    def ids(self, axis):
        return torch.arange(len(self.pieces))[None]

    def tokens(self, axis, b, indices):
        return [self.pieces[i] for i in indices]


def test_where_sentences_and_paragraphs_begin():
    view = Shown(
        "It", " rains", ".", " We", " stay", " in", "!", "\n", "\n", "Mr", " No", " left", ".", "\n", "Why", "?"
    )
    text = Cuttable(view, "k", 0, range(view.call.size[1]))
    assert text.starts("sentences", 16) == [0, 3, 9, 14]
    assert text.starts("paragraphs", 16) == [0, 9]
    assert text.starts("words", 7) == [0, 1, 3, 4, 5]
    assert text.starts("sentences", 9) == [0, 3]
    assert text.counts(16)["pieces"] == 16


def test_tokens_of_all_segments_at_once():
    segments = read_segments({"a": [4, 1], "b": (2, 4)}, 7)
    assert segments.tokens() == [[1, 4], [2, 3], [0, 5, 6]]


@pytest.mark.parametrize("how", ["weights", "carried"])
def test_sources_of_one_layer_and_head(run, how):
    recording, server, name = run
    asked = {"first": 18, "end": 22, "how": how, "by": "pieces"}
    path = f"/runs/{name}/sources"
    for layer, heads in ((0, None), (1, None), (0, 1), (1, 0)):
        more = {} if heads is None else {"h": heads}
        answer = got(server, path, **asked, l=layer, **more)
        chosen = None if heads is None else [heads]
        found = recording.sources((18, 22), how, layers=f"blocks.{layer}.self", heads=chosen)
        assert answer["scores"] == pytest.approx(found.scores.tolist(), rel=1e-6)
    # Each is another answer, and none of them is taken for another from memory.
    every = [tuple(got(server, path, **asked, **more)["scores"]) for more in ({}, {"l": 0}, {"l": 1}, {"l": 1, "h": 0})]
    assert len(set(every)) == 4
    assert got(server, f"/runs/{name}/answer")["readers"] == [0, 1]


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"how": "rollout", "l": "0"}, 400, "goes through the whole model"),
        ({"how": "weights", "h": "0"}, 400, "l= says of which"),
        ({"how": "weights", "l": "9"}, 404, "there is no attention 9"),
        ({"how": "weights", "l": "0", "h": "9"}, 404, "there is no head 9"),
    ],
)
def test_layers_and_heads_that_do_not_fit(run, more, status, said):
    _, server, name = run
    answer = server.answer("GET", f"/runs/{name}/sources", {"first": "18", "end": "22"} | more)
    assert (answer.status, said in answer.refusal.message) == (status, True)


def test_only_what_reads_the_context_is_chosen():
    server = api()
    name = read(server, "Good morning.", model="learnt")["run"]
    readers = got(server, f"/runs/{name}/answer")["readers"]
    kinds = [one["kind"] for one in got(server, f"/runs/{name}")["attentions"]]
    assert readers == [at for at, kind in enumerate(kinds) if kind == "cross"]
    answer = server.answer("GET", f"/runs/{name}/sources", {"first": "1", "end": "3", "l": str(kinds.index("encoder"))})
    assert (answer.status, "does not read the context" in answer.refusal.message) == (400, True)


def test_the_page_trusts_each_way_as_far_as_was_measured():
    """The figures of the page's sentences are those of docs/benchmarks.md."""
    root = Path(__file__).parents[3]
    table = (root / "docs/benchmarks.md").read_text().split("## Sources")[1]
    page = (root / "web/screens/sources/index.jsx").read_text().split("const TRUST = {")[1].split("};")[0]
    said = dict(re.findall(r"(\w+):\n((?:.*\n)+?)(?=  \w+:\n|$)", page.replace('" +\n    "', "")))
    assert [*said] == ["weights", "carried", "rollout", "gradient", "hidden"]
    for how in ("weights", "carried", "rollout", "gradient"):
        sentences, words = re.search(rf"\| {how} \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|", table).groups()
        assert f"{words} for words" in said[how], how
        assert f"{sentences} for sentences" in said[how], how
        assert said[how].strip(' "').startswith("An estimate")
    assert said["hidden"].strip(' "').startswith("Measured")


def test_a_recording_without_texts_says_how_to_keep_them():
    recording = recorded(8)
    for decode, names, notice in ((None, None, True), (lambda ids: "x", None, False)):
        recording.decode = decode
        server, name = serving(recording)
        said = got(server, f"/runs/{name}")["notice"]
        assert (said is not None and "ts.watch(model, tokenizer=tokenizer)" in said) == notice
        assert names is None
