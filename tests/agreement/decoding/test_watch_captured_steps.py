"""Captured steps of Telescope's own models are watched without hooks: the numbers are those of hooks."""

import gc
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Thread
from weakref import ref

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.replaying import replayed_steps
from support.writers import KINDS, made, prompts
from telescope.decoding import generate, stream
from telescope.interception import captured_steps
from telescope.layers import OnlyReal
from telescope.models import Special

N = 18
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.2, "seed": 4}


def assert_same(recording, hooked, *, without=()):
    assert recording.names == hooked.names
    for name, watched in recording.items():
        for one, other in zip(watched.calls, hooked[name].calls, strict=True):
            assert (one.size, one.rows, one.heads) == (other.size, other.rows, other.heads), name
            assert one._facts.written == other._facts.written
            assert one._facts.prompt == other._facts.prompt
            assert one._kept.keys() - {*without} == other._kept.keys() - {*without}, name
            for part, stored in one._kept.items():
                close = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
                assert_close(
                    stored.tensor,
                    other._kept[part].tensor,
                    **close,
                    msg=lambda said, at=part: f"{at}: {said}",
                )
            ours, theirs = one.survey(), other.survey()
            assert_close(ours.received, theirs.received, rtol=1e-9, atol=1e-9)
            assert_close(ours.entropy, theirs.entropy, rtol=1e-9, atol=1e-9)


def assert_as_hooked(work):
    """Compare what `work` records and writes with captured steps and with hooks."""
    hooked, expected = work()
    with replayed_steps():
        recording, found = work()
    assert found == expected
    assert_same(recording, hooked)


@contextmanager
def few_wait():
    """Three steps wait at most, so that a generation records several times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured_steps, "ROOM", 3)
        yield


def watched(work, model, options=None, *, captured, edits=()):
    """Return the recording of work(model, recording), what that returned, and the captured steps."""
    with ExitStack() as blocks:
        steps = blocks.enter_context(replayed_steps() if captured else nullcontext([]))
        if edits:
            blocks.enter_context(ts.edit(model, *edits))
        recording = blocks.enter_context(ts.watch(model, **(options or {})))
        found = work(model, recording)
    return recording, found, steps


def check(work, model, options=None, *, captures=True, edits=()):
    """Compare captured steps with hooks, with many steps that wait and with three at most."""
    hooked, expected, _ = watched(work, model, options, captured=False, edits=edits)
    for waiting in (nullcontext, few_wait):
        with waiting():
            recording, found, steps = watched(work, model, options, captured=True, edits=edits)
        assert found == expected
        assert any(step.graph is not None for step in steps) == captures
        assert_same(recording, hooked)
        assert recording.edits == hooked.edits
    return recording


def write(how=SAMPLED, tokens=N, texts=None):
    texts = prompts() if texts is None else texts
    return lambda model, _: generate(model, texts, max_new_tokens=tokens, **how)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_summaries_are_those_of_hooks(kind, how):
    model = made(kind, end=())
    free = write(how)(model, None)
    # Rows that end early are carried along; greedy ones repeat themselves.
    ends = tuple(free[i].ids[3 * i + 1] for i in range(4)) if how == SAMPLED else ()
    model.special = Special(start=0, end=ends, pad=0)
    lengths = {len(line.ids) for line in write(how)(model, None)}
    assert how == GREEDY or len(lengths) > 2
    recording = check(write(how), model, captures=kind != "luong")
    assert recording[recording.names[-1]].call.size[0] >= max(lengths) - (kind in ("transformer", "luong"))


OPTIONS = {
    "top": {"top": 3},
    "none": {"top": 0},
    "last": {"queries": -1},
    "some": {"queries": [0, 7, 12]},
    "slice": {"queries": slice(3, 14, 2), "heads": [2, -1]},
    "streaming": {"also": "streaming"},
    "norms": {"also": "norms", "keep": "queries-keys"},
    "queries-keys": {"keep": "queries-keys", "heads": [1], "queries": [-1]},
    "disk": {"store": "disk", "keep": "queries-keys"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["llama", "transformer"])
def test_every_option_keeps_what_it_keeps_with_hooks(kind, options):
    check(write(), made(kind), options)


@pytest.mark.parametrize("layers", ["*.cross", "decoder.1.*", "decoder.0.self"])
def test_some_layers(layers):
    check(write(), made("transformer"), {"layers": layers})


def test_more_steps_than_fit_into_the_buffers():
    """Of a single prompt and of several; 128 steps wait at most."""
    model = made(end=(), positions=320)
    check(write(tokens=150, texts=[[5, 6, 7]]), model)
    check(write(tokens=132, texts=prompts((2, 4))), model, {"queries": [-1], "layers": -1})


@pytest.mark.parametrize("seed", range(3))
def test_the_whole_text_at_once_gives_the_same_numbers(seed):
    model = made(end=(), seed=seed).eval()
    recording, (line,), _ = watched(write(texts=[[5, 6, 7, 8]]), model, captured=True)
    with ts.watch(model) as whole, torch.no_grad():
        model(torch.tensor([[5, 6, 7, 8, *line.ids[:-1]]]))
    for name, one in recording.items():
        assert_close(one.received, whole[name].received)
        assert_close(one.entropy, whole[name].entropy)
        assert torch.equal(one.survey().top.keys, whole[name].survey().top.keys)


@pytest.mark.parametrize("kind", ["learned", "transformer"])
def test_several_generations_in_a_block(kind):
    def work(model, recording):
        return [generate(model, prompts(seed=i)[: i + 1], max_new_tokens=N + i, seed=i) for i in range(3)]

    check(work, made(kind))


def test_a_forward_pass_between_generations():
    def work(model, recording):
        first = generate(model, [[5, 6]], max_new_tokens=N)
        with torch.no_grad():
            model(torch.tensor([[4, 5, 6]]))
            model.blocks[0](torch.zeros(1, 3, 16, dtype=torch.float64))
        return first, generate(model, [[5, 6]], max_new_tokens=N)

    check(work, made(end=()).eval())


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
def test_reading_between_streamed_tokens(keep):
    def work(model, recording):
        read = []
        for i, token in enumerate(stream(model, [5, 6, 7], max_new_tokens=N)):
            read.append(token.id)
            if i % 4 == 3:
                call = recording["blocks.1.self"].call
                read += [call.size, call.survey().entropy.sum().item().__round__(9)]
        return read

    check(work, made(end=()), {"keep": keep})


def test_two_streams_by_turns():
    def work(model, recording):
        streams = [stream(model, ids, max_new_tokens=N, **GREEDY) for ids in ([5, 6, 7], [8, 9])]
        return [(one.id, other.id) for one, other in zip(*streams, strict=True)]

    check(work, made(end=()))


def test_steps_are_recorded_while_another_text_is_read():
    """What is told of the tokens of the one does not hold for the other."""

    def work(model, recording):
        generate(model, prompts((4, 7)), max_new_tokens=6, **GREEDY)
        with OnlyReal(torch.tensor([[True, False], [True, True]])), torch.no_grad():
            model(torch.tensor([[4, 5, 6], [7, 8, 9]]))

    check(work, made(end=()).eval())


@pytest.mark.parametrize("when", [0, 1, 5])
def test_an_exception_in_a_step_leaves_the_steps_before(when, monkeypatch):
    model, count = made(end=()), 0
    hooked, *_ = watched(write(tokens=when + 2, texts=[[5, 6, 7]]), model, captured=False)
    norm = type(model.norm).forward

    def failing(self, x):
        nonlocal count
        # The prompt, the two runs of the capture, then step by step.
        count += self.weight is model.norm.weight
        if count == when + 5:
            raise OverflowError
        return norm(self, x)

    monkeypatch.setattr(type(model.norm), "forward", failing)
    with replayed_steps(), ts.watch(model) as recording:
        with pytest.raises(OverflowError):
            generate(model, [[5, 6, 7]], max_new_tokens=N, **SAMPLED)
        monkeypatch.undo()
        assert recording["blocks.1.self"].call.size == (4 + when, 4 + when)
    assert_same(recording, hooked)


def test_an_exception_in_the_block_leaves_the_steps_before():
    model = made(end=())
    hooked, *_ = watched(write(), model, captured=False)
    block = ts.watch(model)
    with replayed_steps():
        recording = block.__enter__()
        write()(model, recording)
        assert not block.__exit__(OverflowError, OverflowError(), None)
    assert_same(recording, hooked)


# ----------------------------------------------------------------------------------------- what needs hooks


def test_what_cannot_be_captured_runs_with_hooks():
    model, seen = made(), []
    check(write(), model, {"keep": "steps"}, captures=False)
    check(write(), model, {"also": "gradients"}, captures=False)
    check(write(), model, captures=False, edits=[ts.hide([0, 1])])

    def calling(model, recording):
        recording.on_call = seen.append
        return generate(model, prompts(), max_new_tokens=N)

    check(calling, model, captures=False)
    assert len(seen) > 2 * N
    handle = model.blocks[0].register_forward_hook(lambda *_: seen.append("user"))
    check(write(), model, captures=False)
    handle.remove()
    assert seen.count("user") > N


def test_under_autocast_hooks_run():
    def work(model, recording):
        with torch.autocast("cpu", torch.bfloat16):
            return generate(model, prompts(), max_new_tokens=N, **GREEDY)

    check(work, made().float(), captures=False)


def test_a_layer_that_computes_its_keys_anew_runs_with_hooks(monkeypatch):
    """In a graph they lie in memory that the next step writes to."""
    model = made()
    attend = ts.layers.MultiHeadAttention._attend
    monkeypatch.setattr(
        ts.layers.MultiHeadAttention,
        "_attend",
        lambda self, queries, keys, values, *rest, **options: attend(
            self, queries, keys * 1.0, values, *rest, **options
        ),
    )
    hooked, expected, _ = watched(write(), model, captured=False)
    recording, found, steps = watched(write(), model, captured=True)
    assert found == expected
    assert "alike" in steps[0].failure
    assert_same(recording, hooked)


def test_a_layer_that_names_its_arguments_runs_with_hooks(monkeypatch):
    def attend(self, queries, keys, values, attention, *, across):
        return self.attend(queries, keys, values=values, attention=attention, across=across)

    monkeypatch.setattr(ts.layers.MultiHeadAttention, "_attend", attend)
    hooked, expected, _ = watched(write(), made(), captured=False)
    recording, found, steps = watched(write(), made(), captured=True)
    assert found == expected
    assert steps[0].failure
    assert_same(recording, hooked)


def test_a_block_of_another_thread_runs_with_hooks():
    model, found = made(), []
    with replayed_steps() as steps, ts.watch(model):
        thread = Thread(target=lambda: found.append(write()(model, None)))
        thread.start()
        thread.join()
    assert found == [write()(model, None)]
    assert steps == []


# ---------------------------------------------------------------------------------------------------- edits


@pytest.mark.parametrize("kind", ["llama", "transformer"])
def test_muted_heads(kind):
    layers = "blocks.0.self" if kind == "llama" else "decoder.*.self"
    edits = [ts.mute(layers, heads=[1, 2]), ts.mute(layers, heads=[3], times=0.3)]
    model = made(kind, seed=6)
    check(write(), model, edits=edits)
    # Without a watch, too.
    with ts.edit(model, *edits):
        expected = write()(model, None)
        with replayed_steps() as steps, few_wait():
            assert write()(model, None) == expected
    assert steps[0].graph is not None
    assert write()(model, None) != expected


@pytest.mark.parametrize("edit", [ts.mute("blocks.0.self", heads=[1, 2]), ts.hide([0, 1])], ids=str)
@pytest.mark.parametrize("is_watched", [False, True])
def test_an_edit_between_streamed_tokens(edit, is_watched):
    def work(model, recording):
        tokens = stream(model, [5, 6, 7], max_new_tokens=N, **GREEDY)
        found = [next(tokens).id for _ in range(5)]
        with ts.edit(model, edit):
            found += [next(tokens).id for _ in range(5)]
        return found + [token.id for token in tokens]

    model = made(end=())
    if is_watched:
        check(work, model)
        return
    plain = work(model, None)
    with replayed_steps():
        assert work(model, None) == plain
    assert plain != [token.id for token in stream(model, [5, 6, 7], max_new_tokens=N, **GREEDY)]


# --------------------------------------------------------------------------------------------------- blocks


def test_a_block_around_some_of_the_tokens():
    model = made(end=())

    def work():
        tokens = stream(model, [5, 6, 7], max_new_tokens=N, **GREEDY)
        found = [next(tokens).id for _ in range(4)]
        with ts.watch(model) as recording:
            found += [next(tokens).id for _ in range(5)]
        return recording, found + [token.id for token in tokens]

    assert_as_hooked(work)


def test_the_steps_after_a_block_are_not_recorded():
    model = made(end=())

    def work():
        with ts.watch(model) as recording:
            tokens = stream(model, [5, 6, 7], max_new_tokens=N, **GREEDY)
            found = [next(tokens).id for _ in range(6)]
        return recording, found + [token.id for token in tokens]

    assert_as_hooked(work)


def test_steps_wait_until_somebody_reads_and_go_with_the_recording():
    model = made(end=())
    with replayed_steps(), ts.watch(model) as recording:
        generate(model, [[5, 6, 7]], max_new_tokens=N)
    assert [len(one._recorded) for one in recording._watched.values()] == [1, 1]
    assert recording._watched["blocks.0.self"]._recorded[0].size == (3, 3)
    assert recording.nbytes > 0  # counts what waits
    assert recording._watched["blocks.0.self"]._recorded[0].size == (N + 2, N + 2)

    gc.collect()
    gc.disable()
    try:
        with replayed_steps() as steps, ts.watch(model) as recording:
            generate(model, [[5, 6, 7]], max_new_tokens=N)
        steps.clear()
        gone = ref(recording)
        del recording
        assert gone() is None
    finally:
        gc.enable()
    assert not any(hasattr(module, captured_steps.TAP) for module in model.modules())


def test_large_caches_are_recorded_when_the_block_ends(monkeypatch):
    monkeypatch.setattr(captured_steps, "WAITING_BYTES", 0)
    model = made(end=())
    with replayed_steps(), ts.watch(model) as recording:
        generate(model, [[5, 6, 7]], max_new_tokens=N)
    assert recording._watched["blocks.0.self"]._recorded[0].size == (N + 2, N + 2)
