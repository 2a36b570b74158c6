"""Every number that the explorer's API returns is what the model computed, compared with float64."""

import json
import struct
from dataclasses import fields
from itertools import product

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.testing import assert_close

import telescope as ts
from support import writers
from support.exploring import SENTENCES, api, got, read, recorded, serving
from telescope.explorer.api import Api
from telescope.explorer.library import Library
from telescope.explorer.maps import _f16, _u8
from telescope.layers import Attend
from telescope.measures import CLEAR, HABITS, Head
from telescope.models import Encoder, EncoderConfig
from telescope.recording.row_in_float64 import ALL, SOME
from telescope.traces import cosines, plane

CLOSE = {"atol": 1e-12, "rtol": 1e-12}


def numbers(listed):
    return torch.tensor(_numbers(listed), dtype=torch.float64)


def _numbers(listed):
    return [_numbers(one) for one in listed] if isinstance(listed, list) else float(listed)


@pytest.fixture(scope="module", params=SENTENCES)
def sentence(request):
    """Return the run of a sentence, and the inputs and the output of every attention that the model computed for it."""
    run, model = read(api(), request.param), writers.learnt()
    source, target = (model.tokenizer.encode(text).ids for text in (run["text"], run["written"]))
    contexts = {}

    def keep(name):
        return lambda module, args, context: contexts.update({name: context})

    hooks = [
        module.register_forward_hook(keep(name.replace("_attention.attend", "")))
        for name, module in model.named_modules()
        if isinstance(module, Attend)
    ]
    with ts.watch(model, keep="steps") as recording, torch.no_grad():
        model(torch.tensor([source]), torch.tensor([[writers.START, *target[:-1]]]))
    for hook in hooks:
        hook.remove()
    return run, recording, contexts


def places(run):
    for attention in run["attentions"]:
        for h, i in product(attention["heads"], range(attention["n_q"])):
            yield attention, h, i


def test_every_number_of_every_trace(sentence):
    run, recording, contexts = sentence
    assert [attention["name"] for attention in run["attentions"]] == sorted(
        recording, key=lambda name: (name.startswith("decoder"), name.endswith("cross"), name)
    )
    for attention, h, i in places(run):
        call = recording[attention["name"]].call
        truth = ts.trace(call.queries.double(), call.keys.double(), call.values.double(), call.attention)
        walk = got(api(), f"/runs/{run['run']}/trace", l=attention["l"], h=h, i=i)
        assert walk["keys"] == list(range(attention["n_k"]))
        assert_close(numbers(walk["query"]), truth.queries[0, h, i], **CLOSE)
        assert_close(numbers(walk["key"]), truth.keys[0, h], **CLOSE)
        assert_close(numbers(walk["value"]), truth.values[0, h], **CLOSE)
        for step in walk["steps"]:
            assert_close(numbers(step["numbers"]), getattr(truth, step["name"])[0, h, i], **CLOSE)
        steps = {step["name"]: numbers(step["numbers"]) for step in walk["steps"]}
        assert list(steps) == ["scores", "scaled", *(["masked"] if attention["mask"] != "everyone" else []), "weights"]
        assert_close(numbers(walk["terms"]).sum(1), steps["scores"], **CLOSE)
        asks, offers = (numbers(walk["factors"][side]) for side in ("query", "key"))
        assert_close(asks * offers, numbers(walk["terms"]), **CLOSE)
        assert_close(steps["weights"].sum().item(), 1.0, **CLOSE)
        assert_close(torch.exp(list(steps.values())[-2] - walk["lse"]), steps["weights"], **CLOSE)
        assert_close(steps["weights"] @ numbers(walk["value"]), numbers(walk["context"]), **CLOSE)
        own = contexts[attention["name"]][0, h, i]  # the model's, in float32
        assert_close(numbers(walk["context"]), own.double(), atol=1e-5, rtol=1e-5)
        assert_close(numbers(walk["stream"]["before"]), call.before[0, i].double(), **CLOSE)
        assert_close(numbers(walk["stream"]["after"]), call.after[0, i].double(), **CLOSE)
        assert walk["rest"] == {"keys": 0, "weight": 0.0, "context": None}


def test_cells_equal_the_trace(sentence):
    run = sentence[0]
    for attention, h, i in list(places(run))[::7]:
        walk = got(api(), f"/runs/{run['run']}/trace", l=attention["l"], h=h, i=i)
        steps = {step["name"]: step["numbers"] for step in walk["steps"]}
        for j in range(0, attention["n_k"], 3):
            cell = got(api(), f"/runs/{run['run']}/cell", l=attention["l"], h=h, i=i, j=j)
            assert_close(cell["dot"], steps["scores"][j], **CLOSE)
            assert_close(cell["scaled"], steps["scaled"][j], **CLOSE)
            assert_close(cell["p"], steps["weights"][j], **CLOSE)
            assert cell["visible"] == (cell["masked"] != "-inf") == (steps.get("masked", [0.0] * 99)[j] != "-inf")
            assert (cell["query"], cell["key"]) == (walk["token"], walk["tokens"][j])
        row = got(api(), f"/runs/{run['run']}/cells", l=attention["l"], h=h, i=i, j=1)
        hidden = [x == "-inf" for x in steps.get("masked", [0.0] * attention["n_k"])]
        assert row["p"] == [None if none else p for p, none in zip(steps["weights"], hidden, strict=True)][1:]


def test_maps_heads_and_alignments_show_the_weights(sentence):
    run, recording, _ = sentence
    for attention in run["attentions"]:
        n_q, n_k, l = attention["n_q"], attention["n_k"], attention["l"]  # noqa: E741
        weights = recording[attention["name"]].trace().weights[0]
        heads = got(api(), f"/runs/{run['run']}/heads", l=l)
        assert (heads["rows"], heads["columns"], heads["exact"]) == (n_q, n_k, True)
        words = [got(api(), f"/runs/{run['run']}/tokens", l=l, axis=axis)["words"] for axis in "qk"]
        for h, drawn in enumerate(heads["maps"]):
            assert_close(numbers(drawn["share"]), weights[h].double(), atol=1e-6, rtol=1e-5)
            tile = got(api(), f"/runs/{run['run']}/tiles/0/0/0", l=l, h=h)
            picture = torch.tensor(struct.unpack("<65536e", tile.body)).view(256, 256)
            assert_close(picture[:n_q, :n_k].exp2(), weights[h], atol=1e-3, rtol=4e-3)
            assert picture[n_q:].isnan().all()
            assert picture[:, n_k:].isnan().all()
            aligned = got(api(), f"/runs/{run['run']}/alignment", l=l, h=h)
            joined = torch.zeros(max(words[0]) + 1, max(words[1]) + 1)
            for i, j in product(range(n_q), range(n_k)):
                joined[words[0][i], words[1][j]] += weights[h, i, j] / words[0].count(words[0][i])
            assert_close(numbers(aligned["weights"]), joined.double(), atol=1e-6, rtol=1e-5)
        mean = got(api(), f"/runs/{run['run']}/alignment", l=l, h="mean")["weights"]
        every = [got(api(), f"/runs/{run['run']}/alignment", l=l, h=h)["weights"] for h in attention["heads"]]
        assert_close(numbers(mean), numbers(every).mean(0), atol=1e-7, rtol=1e-6)


def peak(aligned):
    """Return the mean, over the rows, of the largest share that goes to one word."""
    return numbers(aligned["weights"])[aligned["real_rows"]][:, aligned["real_columns"]].amax(-1).mean().item()


def test_the_sharpest_alignment(sentence):
    """The sharpest cross-attention has the largest peak of the mean over all heads; then its sharpest head."""
    run, *_ = sentence
    path = f"/runs/{run['run']}"
    cross = [attention for attention in run["attentions"] if attention["kind"] == "cross"]
    means = {one["l"]: peak(got(api(), f"{path}/alignment", l=one["l"], h="mean")) for one in cross}
    best = max(means, key=means.get)
    heads = [peak(got(api(), f"{path}/alignment", l=best, h=h)) for h in cross[0]["heads"]]
    reply = got(api(), f"{path}/sharpest")
    assert (reply["l"], reply["h"], reply["of"]) == (best, heads.index(max(heads)), 2)
    assert (reply["mean"], reply["head"]) == pytest.approx((means[best], max(heads)), rel=1e-6)


def test_the_sharpest_layer_of_a_model_of_one_text():
    run = read(api(), "to be or not", model="gpt")
    means = [peak(got(api(), f"/runs/{run['run']}/alignment", l=l, h="mean")) for l in (0, 1)]  # noqa: E741
    assert got(api(), f"/runs/{run['run']}/sharpest")["l"] == means.index(max(means)) == 1


@pytest.mark.parametrize("keep", ["queries-keys", "steps"])
@pytest.mark.parametrize("saved", [True, False], ids=["saved", "in memory"])
def test_a_recorded_translation_is_aligned_as_a_live_one(keep, saved, tmp_path):
    """A row is labelled by the token that the query writes, not by the one that it read. Special tokens have names."""
    model, text = writers.learnt(), "How are you?"
    with ts.watch(model, keep=keep) as recording:
        (written,) = ts.decoding.generate(model, [text], max_new_tokens=20, temperature=0)
    library = Library({"learnt": model})
    if saved:
        recording.save(tmp_path / "run.telescope")
        run = library.open(tmp_path / "run.telescope")
    else:
        run = library.add(recording, "run", "rev")
    explorer, live = Api(library), library.read(text)

    order = {looked.name: at for at, looked in enumerate(live.views)}
    for l, looked in enumerate(run.views):  # noqa: E741
        reply = got(explorer, f"/runs/{run.name}/alignment", l=l, h="mean")
        expected = got(explorer, f"/runs/{live.name}/alignment", l=order[looked.name], h="mean")
        last = "…" if looked.kind == "cross" else expected["rows"][-1]  # the end token was written, but never read
        assert reply["rows"] == [*expected["rows"][:-1], last]
        assert reply["columns"] == expected["columns"]
        assert reply["real_rows"] == expected["real_rows"]
        assert reply["real_columns"] == expected["real_columns"]
        assert_close(torch.tensor(reply["weights"]), torch.tensor(expected["weights"]), atol=1e-5, rtol=1e-4)
    assert written.ids[-1] == writers.END
    assert "Wie" in got(explorer, f"/runs/{run.name}/alignment", l=len(run.views) - 1, h=0)["rows"]


def test_selected_queries_are_labelled_by_the_tokens_they_write():
    model = writers.learnt()
    with ts.watch(model, keep="queries-keys", queries=[0, 3, 400]) as recording:
        (written,) = ts.decoding.generate(model, ["How are you?"], max_new_tokens=20, temperature=0)
    run, decode = Library({}).add(recording, "run", "rev"), model.tokenizer.decode
    cross = next(looked for looked in run.views if looked.kind == "cross")
    assert cross.tokens("q", 0, range(2)) == [decode([written.ids[0]]), decode([written.ids[3]])]
    own = next(looked for looked in run.views if looked.kind == "decoder")
    assert own.tokens("q", 0, range(2)) == ["<s>", decode([written.ids[2]])]
    assert (cross.real("q", 0), own.real("q", 0)) == ([0, 1], [1])


def test_a_long_text_has_no_sharpest_alignment():
    explorer, run = serving(recorded(1100))
    answer = explorer.answer("GET", f"/runs/{run}/sharpest", {})
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (409, "not-kept")


def test_habits_equal_those_of_the_recording(sentence):
    run, recording, _ = sentence
    reply = {(head.layer, head.number): head for head in recording.heads()}
    for attention in run["attentions"]:
        if attention["kind"] == "cross":
            continue  # whose tokens a call knows depends on what else was watched
        for habits in got(api(), f"/runs/{run['run']}/heads", l=attention["l"])["habits"]:
            head = reply[attention["name"], habits["h"]]
            assert habits["kind"] == head.kind
            assert habits["spread"] == float(f"{head.spread:.7g}")  # as many digits as are true in float32


def test_habits_and_the_threshold_of_kinds_are_those_of_heads():
    """The page has no list of its own: names, texts and threshold come with the answer, in the order of the table."""
    asked, run = serving(recorded(9))
    answer = got(asked, f"/runs/{run}/heads", l=0)
    assert answer["clear"] == CLEAR
    assert list(answer["habit_keys"]) == [*HABITS, "neighbours"]
    assert [field.name for field in fields(Head)][3 : 3 + len(HABITS)] == list(HABITS)
    for head in answer["habits"]:
        shares = {name: head[name] or 0.0 for name in answer["habit_keys"]}
        assert head["kind"] == "mixed" or shares[head["kind"]] >= answer["clear"]
        assert head["kind"] != "mixed" or max(shares.values()) < answer["clear"]


def test_the_plane_by_hand():
    """Four points of a cross in space, which is then stretched to twice its length: its plane loses nothing."""
    before = torch.tensor([[1.0, 0, 5], [-1, 0, 5], [0, 3, 5], [0, -3, 5]])
    after = torch.tensor([[2.0, 0, 5], [-2, 0, 5], [0, 6, 5], [0, -6, 5]])
    flat = plane(before, after)
    assert_close(flat.before.abs(), torch.tensor([[0.0, 1], [0, 1], [3, 0], [3, 0]]).double(), atol=1e-9, rtol=0)
    assert_close(flat.after, flat.before * 2, atol=1e-9, rtol=0)
    assert_close(list(flat.explained), [0.9, 0.1])  # 2 (9 + 36) and 2 (1 + 4) of 100
    assert_close(flat.moved[0].item(), (2 + 25) / (26**0.5 * 29**0.5))
    assert_close(cosines(before)[0, 1].item(), 24 / 26)


@pytest.mark.parametrize("vectors", [torch.ones(1, 4), torch.ones(3, 1), torch.zeros(3, 2)])
def test_a_plane_of_vectors_without_variance(vectors):
    flat = plane(vectors, vectors)
    assert flat.before.shape == (len(vectors), 2)
    assert flat.before.abs().max() < 1e-9
    assert sum(flat.explained) <= 1.0


def test_geometry_is_computed_from_the_residual_stream(sentence):
    run, recording, _ = sentence
    for attention in run["attentions"]:
        call = recording[attention["name"]].call
        reply = got(api(), f"/runs/{run['run']}/geometry", l=attention["l"])
        before, after = call.before[0].double(), call.after[0].double()
        apart = torch.cdist(numbers(reply["before"]), numbers(reply["after"]))
        assert (apart <= torch.cdist(before, after) + 1e-9).all()  # a plane brings nearer, never farther apart
        assert_close(numbers(reply["cosines"]["before"]), torch.nn.functional.cosine_similarity(
            before[:, None], before[None], dim=-1), **CLOSE)  # fmt: skip
        assert_close(numbers(reply["moved"]), torch.nn.functional.cosine_similarity(before, after), **CLOSE)
        assert len(reply["tokens"]) == reply["n"] == attention["n_q"]


def test_a_tile_is_exact_to_a_fiftieth_of_a_bit():
    """Weights down to 2^-40, below one of a million equal ones, differ from masked pairs and from pixels outside."""
    logs = torch.cat([torch.linspace(-40, 0, 65533), torch.tensor([-torch.inf, torch.nan, -1e9])]).view(256, 256)
    half = torch.tensor(struct.unpack("<65536e", _f16(logs))).view(256, 256)
    small = torch.tensor(list(_u8(logs))).view(256, 256)
    listed = torch.where(small > 1, (small - 255) / 8, torch.nan)
    assert (half - logs).flatten()[:-3].abs().max() < 0.02
    near = logs.flatten()[:-3] > -31.6
    assert (listed - logs).flatten()[:-3][near].abs().max() <= 1 / 16 + 1e-6
    assert half[-1, -3] == -torch.inf
    assert half[-1, -2].isnan()
    assert half[-1, -1] == torch.finfo(torch.float16).min
    assert small[-1, -3:].tolist() == [1, 0, 2]


# ---------------------------------------------------------------------------------------------------------- recordings


@pytest.mark.parametrize("keep", ["steps", "queries-keys"])
def test_a_long_row_has_its_largest_weights_and_the_sum_of_the_others(keep):
    n = ALL + 100
    recording = recorded(n, keep=keep, batch=2)
    explorer, run = serving(recording)
    call = recording["blocks.0.self"].call
    weights = ts.survey(call.queries.double(), call.keys.double(), call.attention, top=SOME)
    for b, h, i in [(0, 0, n - 1), (1, 1, 300), (0, 1, 10)]:
        walk = got(explorer, f"/runs/{run}/trace", l=0, h=h, i=i, b=b)
        row = weights.rows(i)[b, h, 0]
        assert len(walk["keys"]) == SOME
        assert walk["keys"] == sorted(walk["keys"])
        reply = numbers(next(step for step in walk["steps"] if step["name"] == "weights")["numbers"])
        assert_close(reply, row[walk["keys"]], **CLOSE)
        assert reply.min() >= row.index_fill(0, torch.tensor(walk["keys"]), 0.0).max()
        assert_close(walk["rest"]["weight"], 1.0 - reply.sum().item(), atol=1e-12, rtol=0)
        assert walk["rest"]["keys"] == n - SOME
        assert walk["tokens"][0] == chr(97 + walk["keys"][0] % 26) * 3
        assert_close(walk["lse"], weights.lse[b, h, i].item(), **CLOSE)
        if keep == "steps":
            context = row @ call.values[b, h].double()
            assert_close(numbers(walk["context"]), context, **CLOSE)
            assert_close(reply @ numbers(walk["value"]) + numbers(walk["rest"]["context"]), context, **CLOSE)
        else:
            assert walk["context"] is walk["value"] is walk["stream"] is None
        cell = got(explorer, f"/runs/{run}/cell", l=0, h=h, i=i, j=7, b=b)
        assert_close(cell["p"], row[7].item(), **CLOSE)
        some = got(explorer, f"/runs/{run}/cells", l=0, h=h, i=i, j=n - 40, b=b)["p"]
        assert len(some) == 32
        seen = [p for p in some if p is not None]
        assert len(seen) == max(0, min(32, i + 1 - (n - 40)))
        assert_close(numbers(seen), row[n - 40 : n - 40 + len(seen)], **CLOSE)


def test_traces_of_random_definitions():
    attention = ts.Attention(
        score=ts.general(torch.randn(2, 16, 16)),
        bias=ts.alibi(2),
        softcap=2.0,
        sink=torch.tensor([0.5, -0.5]),
        mask=ts.causal & ts.padding([20, 9]),
    )
    recording = recorded(20, batch=2, attention=attention, keep="steps")
    explorer, run = serving(recording)
    call = recording["blocks.0.self"].call
    truth = ts.trace(call.queries.double(), call.keys.double(), call.values.double(), attention)
    for b, h, i in product(range(2), range(2), (0, 8, 19)):
        walk = got(explorer, f"/runs/{run}/trace", l=0, h=h, i=i, b=b)
        assert [step["name"] for step in walk["steps"]] == ["scores", "scaled", "capped", "biased", "masked", "weights"]
        for step in walk["steps"]:
            assert_close(numbers(step["numbers"]), getattr(truth, step["name"])[b, h, i], **CLOSE)
        assert_close(numbers(walk["terms"]).sum(1), truth.scores[b, h, i], **CLOSE)
        assert_close(numbers(walk["context"]), truth.context[b, h, i], **CLOSE)
        assert walk["sink"] == [0.5, -0.5][h]


def test_traces_of_other_scores_and_normalisers():
    additive = ts.additive(torch.randn(16, 5), torch.randn(16, 5), torch.randn(5))
    for attention in (ts.Attention(score=additive), ts.Attention(normalize=ts.by_sum)):
        recording = recorded(6, attention=attention, keep="steps")
        explorer, run = serving(recording)
        call = recording["blocks.0.self"].call
        truth = ts.trace(call.queries.double(), call.keys.double(), call.values.double(), attention)
        walk = got(explorer, f"/runs/{run}/trace", l=0, h=1, i=4)
        assert_close(numbers(walk["context"]), truth.context[0, 1, 4], **CLOSE)
        assert_close(numbers(walk["terms"]).sum(1), truth.scores[0, 1, 4], **CLOSE)
        assert (walk["lse"] is None) == (attention.normalize is ts.by_sum)


def test_a_saved_recording_gives_the_same_answers(tmp_path):
    """Also a recording of some queries, each at its own position."""
    model = writers.gpt()
    ids = torch.tensor([model.tokenizer.encode("to be or not to be").ids])
    with ts.watch(model, keep="steps", queries=[3, 7, 11]) as recording, torch.no_grad():
        model(ids)
    recording.save(tmp_path / "some.telescope")
    answers = []
    for one in (recording, ts.open(tmp_path / "some.telescope")):
        explorer, run = serving(one, "some")
        answers.append([
            got(explorer, f"/runs/{run}/{what}", l=1, **more)
            for what, more in (("trace", {"h": 2, "i": 1}), ("tokens", {"axis": "q"}), ("heads", {}),
                               ("alignment", {"h": 0}), ("cell", {"h": 0, "i": 2, "j": 11}))
        ])  # fmt: skip
    assert json.dumps(answers[0]) == json.dumps(answers[1])
    trace, tokens, *_, cell = answers[0]
    call = recording["blocks.1.self"].call
    assert tokens["tokens"] == [list("to be or not to be")[place] for place in (3, 7, 11)]
    whole = ts.survey(call.queries.double(), call.keys.double(), call._attention_of_kept(), top=0).rows(1)[0, 2, 0]
    assert_close(numbers(trace["steps"][-1]["numbers"]), whole, **CLOSE)
    assert cell["visible"]
    assert trace["steps"][-2]["numbers"][8] == "-inf"  # place 7 does not see what comes behind it


def test_a_summary_gives_what_it_has_and_refuses_the_rest_with_the_reason():
    model = writers.gpt()
    ids = torch.tensor([model.tokenizer.encode("to be or not to be").ids])
    with ts.watch(model, map=(6, 6)) as recording, torch.no_grad():
        model(ids)
    explorer, run = serving(recording)
    reply = got(explorer, f"/runs/{run}")["attentions"][0]
    assert reply["has"] == {"trace": False, "context": False, "map": True, "geometry": False, "alignment": True,
                           "tokens": True, "after": False, "tiles": True, "positions": False,
                           "image": False}  # fmt: skip
    heads = got(explorer, f"/runs/{run}/heads", l=0)
    assert (heads["rows"], heads["columns"], len(heads["maps"]), len(heads["habits"])) == (6, 6, 4, 4)
    answer = explorer.answer("GET", f"/runs/{run}/trace", {"l": "0", "h": "0", "i": "0"})
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (409, "not-kept")
    assert "queries-keys" in json.loads(answer.body)["error"]["message"]


def test_heads_of_a_long_text_are_marked_as_sampled(monkeypatch):
    monkeypatch.setattr("telescope.explorer.weights.MOST_SCORES", 1)
    monkeypatch.setattr("telescope.explorer.heads.BUDGET", 1)
    explorer, run = serving(recorded(400))
    reply = got(explorer, f"/runs/{run}/heads", l=0)
    assert (reply["rows"], reply["columns"], reply["habits"]) == (25, 25, None)
    assert (reply["exact"], reply["samples"]) == (False, 1.0)
    for drawn in reply["maps"]:
        assert_close(numbers(drawn["share"]).sum(1), torch.ones(25).double(), atol=1e-5, rtol=0)
    one = got(explorer, f"/runs/{run}/heads", l=0, h=1)
    assert [drawn["h"] for drawn in one["maps"]] == [1]
    assert one["maps"][0] == reply["maps"][1]


def test_a_sentence_typed_twice_is_one_run():
    first, again = (read(api(), "I am tired.") for _ in range(2))
    assert first == again
    forced = read(api(), "I am tired.", target="Guten Morgen.")
    assert forced["run"] != first["run"]
    assert forced["written"] == "Guten Morgen."
    written = got(api(), f"/runs/{forced['run']}/tokens", l=3, axis="q")
    assert written["names"] == ["Guten", "Morgen", ".", "</s>"]


def test_a_gpt_reads_a_text():
    run = read(api(), "to be", model="gpt")
    assert [attention["kind"] for attention in run["attentions"]] == ["self", "self"]
    assert "".join(got(api(), f"/runs/{run['run']}/tokens", l=0, axis="k")["names"]) == "tobe"
    walk = got(api(), f"/runs/{run['run']}/trace", l=1, h=3, i=0)
    assert numbers(walk["steps"][-1]["numbers"])[0] == 1.0


def test_a_tokenizers_padding_and_truncation_are_switched_off():
    """A tokenizer that pads to 16 tokens and truncates after 4 reads the whole text, and keeps its settings."""
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(("<pad>", *"abcdef"))}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>", length=16)
    tokenizer.enable_truncation(4, stride=1)
    model = writers.diced(Encoder(EncoderConfig(vocabulary=7, d_model=16, heads=2, blocks=1, max_positions=8)))
    model.tokenizer, before = tokenizer, tokenizer.to_str()
    run = read(Api(Library({"padded": model})), "a b c d e")
    assert run["attentions"][0]["n_k"] == 5
    assert tokenizer.to_str() == before


@pytest.fixture(scope="module")
def shipped():
    """Return the shipped translator's API, its run of a sentence, and the probability of each token that it wrote."""
    model = ts.load("translator-en-de", dtype=torch.float32).eval()
    library = Library({"translator-en-de": model})
    run = library.read("The man saw the astronomer with a telescope.")
    written = list(run.output.written)
    source = torch.tensor([model.tokenizer.encode(run.text).ids])
    with torch.no_grad():
        logits = model(source, torch.tensor([[model.special.start, *written[:-1]]]))[0]
    p = logits.double().softmax(-1)
    return Api(library), run, model, written, p


def test_a_words_probability_is_the_product_of_its_pieces(shipped):
    """Astronomen is three pieces, which decode to A, stron and omen."""
    server, run, model, written, p = shipped
    at = {word.name: vars(word) for word in run.describe().output.words}["Astronomen"]
    queries = range(at["first"], at["i"] + 1)
    assert [model.tokenizer.decode([written[query]]) for query in queries] == ["A", "stron", "omen"]
    pieces = [float(p[query, written[query]]) for query in queries]
    truth = pieces[0] * pieces[1] * pieces[2]
    assert truth < 0.5 * pieces[-1]  # the last piece alone is far likelier

    # On the screen Output, at any of the pieces.
    for query in queries:
        word = got(server, f"/runs/{run.name}/output", i=query)["word"]
        assert (word["name"], [piece["text"] for piece in word["pieces"]]) == ("Astronomen", ["A", "·stron", "·omen"])
        assert word["p"] == pytest.approx(truth, rel=1e-5)
        assert [piece["p"] for piece in word["pieces"]] == pytest.approx(pieces, rel=1e-5)

    # In a what-if that changes nothing: all words, before and after.
    same = got(server, f"/runs/{run.name}/whatif", l=0, h=0, i=0, edits="t:1")["output"]["words"]
    assert " ".join(word["name"] for word in same) == "Der Mann sah den Astronomen mit einem Teleskop ."
    for word in same:
        own = [float(p[query, written[query]]) for query in range(word["first"], word["i"] + 1)]
        assert word["before"] == pytest.approx(torch.tensor(own).prod().item(), rel=1e-5)
        assert (word["after"], word["instead"]) == (pytest.approx(word["before"], rel=1e-4), None)


def test_a_words_probability_at_a_temperature(shipped):
    """Every piece is drawn at the temperature; of one token to choose from, the likeliest has all."""
    server, run, _, written, p = shipped
    at = {word.name: vars(word) for word in run.describe().output.words}["Astronomen"]
    queries = range(at["first"], at["i"] + 1)
    cold = (p.log() / 0.5).softmax(-1)
    truth = torch.stack([cold[query, written[query]] for query in queries]).prod().item()
    word = got(server, f"/runs/{run.name}/output", i=at["i"], temperature=0.5)["word"]
    assert word["p"] == pytest.approx(truth, rel=1e-4)
    likeliest = [int(p[query].argmax()) for query in queries]
    alone = got(server, f"/runs/{run.name}/output", i=at["i"], top_k=1)["word"]
    assert alone["p"] == float(likeliest == [written[query] for query in queries])
