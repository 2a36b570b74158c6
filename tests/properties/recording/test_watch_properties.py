"""Watching changes neither outputs nor gradients nor random numbers, and leaves nothing behind."""

import pickle
import threading
import weakref
from contextlib import nullcontext, suppress
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import telescope as ts
from support.watching import KEEPS, D, Museum, Translator, causal, filled, hooks_of, sequence
from telescope.anatomy import Modules
from telescope.attention import tensors
from telescope.layers import AddNorm, Attend, LuongAttention, MultiHeadAttention
from telescope.measures import SUMS

every_keep = pytest.mark.parametrize("keep", KEEPS)
CONTEXTS = {
    "plainly": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def translator(dtype=torch.float32, **options):
    return filled(Translator(**options), dtype), (sequence(5, dtype=dtype), sequence(4, seed=1, dtype=dtype))


# ------------------------------------------------------------------------------------------------ nothing is changed


@every_keep
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_are_the_same_bits(keep, context, training):
    model, inputs = translator(dropout=0.3)
    model.train(training)
    with CONTEXTS[context]():
        torch.manual_seed(0)
        expected, dice = model(*inputs), torch.get_rng_state()
        torch.manual_seed(0)
        with ts.watch(model, keep=keep):
            got = model(*inputs)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
    assert torch.equal(torch.get_rng_state(), dice)


@every_keep
@pytest.mark.parametrize("make", [Translator, Museum])
def test_gradients_are_the_same_bits(keep, make):
    model, inputs = filled(make(), torch.float32), (sequence(5).float(), sequence(4, seed=1).float())
    expected = torch.autograd.grad(model(*inputs).square().sum(), list(model.parameters()), allow_unused=True)
    with ts.watch(model, keep=keep):
        got = torch.autograd.grad(model(*inputs).square().sum(), list(model.parameters()), allow_unused=True)
    for one, two in zip(got, expected, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


@every_keep
@pytest.mark.parametrize("make", [Translator, Museum])
def test_recorded_tensors_have_no_gradient(keep, make):
    """They keep no graph alive, nor do the weights within a definition."""
    model = filled(make())
    with ts.watch(model, keep=keep) as recording:
        assert model(sequence(5), sequence(4, seed=1)).requires_grad
    for watched in recording.values():
        kept = [part.tensor for part in (*watched.call._kept.values(), *watched.call._fingerprints)]
        assert len(kept) >= 3
        assert not any(tensor.requires_grad for tensor in [*kept, *tensors(watched.call.attention)])


def test_the_model_is_restored():
    model, inputs = translator()
    before = model.state_dict().keys()
    for keep in KEEPS:
        with ts.watch(model, keep=keep):
            assert hooks_of(model)
            model(*inputs)
        assert hooks_of(model) == []
    assert model.state_dict().keys() == before


@every_keep
def test_the_model_is_restored_after_an_exception(keep):
    model, inputs = translator()
    with pytest.raises(ValueError, match="d_model=8"), ts.watch(model, keep=keep) as recording:
        model(inputs[0], inputs[1][..., :3])
    assert hooks_of(model) == []
    assert len(recording["encoder.1.self"].calls) == 1  # what ran before it is there
    assert not recording["decoder.0.self"].calls


def test_other_hooks_are_kept():
    model, inputs = translator()
    seen = []
    model.encoder[0].self_attention.attend.register_forward_hook(lambda *_: seen.append(1))
    others = len(hooks_of(model))
    with ts.watch(model, keep="steps"):
        model(*inputs)
    model(*inputs)
    assert len(seen) == 2
    assert len(hooks_of(model)) == others


def test_an_exception_that_is_caught_inside_leaves_the_residual_stream_right():
    """The block's AddNorm was entered and not left normally."""
    model, (source, target) = translator()
    broken = model.encoder[1].self_attention.W_O
    with ts.watch(model, keep="steps") as recording:
        handle = broken.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(source, target)
        handle.remove()
        model(source, target)
    half, whole = recording["encoder.1.self"].calls
    with pytest.raises(ValueError, match="no residual stream"):
        _ = half.before
    assert torch.equal(whole.before, model.encoder[0](source))
    assert torch.equal(whole.after, model.encoder[1].add_norm_1(whole.before, model.encoder[1].self_attention))


def test_an_exception_that_the_model_catches_leaves_the_residual_stream_right():
    class Second(nn.Module):
        """Attend after something within its add & norm has failed."""

        def __init__(self):
            super().__init__()
            self.outer, self.inner, self.look_attention = AddNorm(D), AddNorm(D), MultiHeadAttention(D, 2)

        def forward(self, x):
            return self.outer(x, self.find)

        def find(self, x):
            with suppress(ZeroDivisionError):
                self.inner(x, lambda _: 1 / 0)
            return self.look_attention(x)

    model, x = filled(Second()), sequence(3)
    with ts.watch(model, keep="steps") as recording:
        y = model(x)
    assert torch.equal(recording["look"].before, x)
    assert torch.equal(recording["look"].after, y)


# -------------------------------------------------------------------------------------------- several at the same time


def test_one_model_is_watched_once():
    model, inputs = translator()
    with ts.watch(model, layers="decoder.*") as recording:
        with pytest.raises(ValueError, match="Translator is being watched already; leave that block first"):
            ts.watch(model, layers="decoder.0.self").__enter__()
        model(*inputs)
    assert [len(watched.calls) for watched in recording.values()] == [1] * 4
    with ts.watch(model) as again:
        model(*inputs)
    assert [len(watched.calls) for watched in again.values()] == [1] * 6


def test_two_models_at_once():
    (one, inputs), other = translator(), filled(Museum(), torch.float32)
    with ts.watch(one) as first, ts.watch(other) as second:
        one(*inputs)
    assert all(watched.calls for watched in first.values())
    assert not any(watched.calls for watched in second.values())


def test_another_thread_is_not_watched():
    """Two requests of a server that share a model each record their own calls."""
    model, inputs = translator()
    seen = {}

    def serve(name, times):
        with ts.watch(model) as recording:
            barrier.wait()
            for _ in range(times):
                model(*inputs)
            barrier.wait()
        seen[name] = len(recording["encoder.0.self"].calls)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=serve, args=(name, name)) for name in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: 1, 2: 2}
    assert hooks_of(model) == []


# ------------------------------------------------------------------------------------- what is kept is what was, then


@every_keep
@pytest.mark.parametrize("context", CONTEXTS)
def test_recorded_tensors_can_be_used_anywhere(keep, context):
    """Also tensors recorded in inference mode, and under autocast in the dtype that ran."""
    model, inputs = translator()
    with ts.watch(model, keep=keep) as recording, CONTEXTS[context]():
        model(*inputs)
        model(*inputs)
    with ts.watch(model, keep=keep) as plain:
        model(*inputs)
    for name, watched in recording.items():
        first, second = (call.survey() for call in watched.calls)
        assert torch.equal(first.entropy, second.entropy)
        assert_close(first.entropy, plain[name].survey().entropy, atol=2e-2 if context == "autocast" else 0.0, rtol=0.0)
        assert first.queries.dtype == (torch.bfloat16 if context == "autocast" else torch.float32)
        assert not first.received.is_inference()
        if keep == "steps":
            with torch.autocast("cpu", torch.bfloat16):  # read under autocast, the numbers are still those that ran
                assert watched.calls[0].trace().queries.dtype == first.queries.dtype
            watched.calls[0].before.clone().requires_grad_().sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_decoding_may_switch_inference_mode(mode):
    model, (_, target) = translator()
    layer = model.decoder[0].self_attention
    with ts.watch(layer, keep="steps") as recording:
        keys, values = layer.keys_and_values(target)
        for i in range(4):
            with mode() if i % 2 else nullcontext():
                q = layer.queries(target)[:, :, i : i + 1]
                layer.attend(q, keys[:, :, : i + 1], values[:, :, : i + 1], layer.attention)
    assert recording["attention"].call.size == (4, 4)


@every_keep
@pytest.mark.parametrize("score", ["general", "concat"])
def test_training_does_not_change_a_recording(keep, score):
    """Weights of the definition itself, and masks, are overwritten in place afterwards."""
    layer, states, memory = filled(LuongAttention(score, D)), sequence(3), sequence(5, seed=1)
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        expected = ts.trace(
            states[:, None],
            memory[:, None],
            memory[:, None],
            ts.Attention(scale=1.0, score=layer.similarity(), mask=ts.padding(keep=real.clone())),
        )
    with ts.watch(layer, keep=keep) as recording:
        layer(states, memory, ts.padding(keep=real)).sum()
    with torch.no_grad():
        real.logical_not_()
        states.zero_()
        memory.zero_()
        for parameter in layer.parameters():
            parameter.zero_()
    assert_close(recording["attention"].survey().received, expected.weights.sum(-2))
    if keep == "queries-keys":
        assert_close(recording["attention"].survey().rows([0, 1, 2]), expected.weights)
    if keep == "steps":
        assert_close(recording["attention"].trace().context, expected.context)


def test_a_survey_does_not_change_while_decoding_continues():
    q, attend = torch.rand(1, 1, 4, 2, dtype=torch.float64), Attend()
    with ts.watch(attend) as recording:
        attend(q[:, :, :2], q[:, :, :2], q[:, :, :2], causal)
        attend(q[:, :, 2:3], q[:, :, :3], q[:, :, :3], causal)
        early = recording["attention"].survey()
        before = early.received.clone(), early.entropy.clone()
        attend(q[:, :, 3:], q, q, causal)
    assert recording["attention"].call.size == (4, 4)
    assert torch.equal(early.received, before[0])
    assert torch.equal(early.entropy, before[1])


def test_dropout_is_recorded():
    model, inputs = translator(dropout=0.25)
    with ts.watch(model.train(), keep="steps") as recording:
        model(*inputs)
    assert "dropout = 0.25" in repr(recording)
    weights = recording["encoder.0.self"].trace().weights
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_memory_grows_with_n_and_not_with_its_square():
    layer = filled(MultiHeadAttention(D, 2, attention=causal), torch.float32)
    for keep in KEEPS:
        sizes = []
        for n in (64, 128, 256):
            with ts.watch(layer, keep=keep) as recording, torch.no_grad():
                layer(sequence(n, dtype=torch.float32))
            call = recording["attention"].call
            sums = call._kept["shares"].nbytes if keep == "summaries" else 0  # of each head, whatever the length
            assert sums <= 2 * 2 * 8 * len(SUMS)
            sizes.append(call.nbytes - sums)
        assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]


def test_memory_grows_by_one_token_at_a_time():
    """Not by all keys again: 200 tokens one by one take at most twice what they take at once."""
    layer, x = filled(MultiHeadAttention(D, 2, attention=causal), torch.float32), sequence(200).float()
    keys, values = layer.keys_and_values(x)
    queries = layer.queries(x)
    sizes = {}
    for n in (1, 200):
        with ts.watch(layer, keep="queries-keys") as recording, torch.no_grad():
            for i in range(0, 200, n):
                seen = slice(0, i + n)
                layer.attend(queries[:, :, i : i + n], keys[:, :, seen], values[:, :, seen], causal)
        sizes[n] = recording["attention"].call.nbytes
    assert sizes[1] <= 2.1 * sizes[200]


@every_keep
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_a_dropped_recording_is_freed(keep, fails, no_collector):
    """At once, not when the garbage collector runs: it may be all of a GPU's memory."""
    model, inputs = translator()
    with suppress(KeyboardInterrupt), ts.watch(model, keep=keep) as recording:
        model(*inputs)
        if fails:
            raise KeyboardInterrupt
    left = [weakref.ref(thing) for thing in (recording, *(call for some in recording.values() for call in some.calls))]
    del recording
    assert [thing() for thing in left] == [None] * len(left)


# ----------------------------------------------------------------------------------------------------------- the names


def test_a_module_used_in_two_places_is_one_attention():
    shared = MultiHeadAttention(D, 2)
    model = filled(nn.ModuleDict({"a_attention": shared, "b_attention": shared}))
    with ts.watch(model) as recording:
        model["b_attention"](sequence(3))
    assert recording.names == ("a",)
    assert len(recording["a"].calls) == 1


def test_modules_by_path_equals_named_modules():
    """Also where a module occurs twice, contains itself, or is None."""
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.ModuleDict({"one": shared, "two": nn.ModuleList([nn.Identity(), shared]), "three": shared[0]})
    model.register_module("nothing", None)
    shared.append(model["two"])
    for whole in (model, shared[0], Translator()):
        assert list(Modules.of(whole).items()) == list(whole.named_modules())


def test_names_that_would_collide_are_paths():
    model = filled(nn.ModuleDict({"self": MultiHeadAttention(D, 2), "self_attention": MultiHeadAttention(D, 2)}))
    with ts.watch(model) as recording:
        model["self_attention"](sequence(3))
    assert recording.names == ("self", "self_attention.attend")
    assert [len(watched.calls) for watched in recording.values()] == [0, 1]


def test_a_recording_is_a_mapping():
    model, inputs = translator()
    with ts.watch(model, layers="encoder.*") as recording:
        model(*inputs)
    assert list(recording) == ["encoder.0.self", "encoder.1.self"] == list(recording.names)
    assert len(recording) == 2
    assert "encoder.0.self" in recording
    assert "encoder.7.self" not in recording
    assert recording.get("encoder.7.self") is None
    assert isinstance(recording, ts.Recording)


# ----------------------------------------------------------------------------------------- compiled and recomputed code


def block():
    model, (x, _) = translator()
    return model.encoder[0].requires_grad_(False), x  # with gradients dynamo would warn


def test_code_compiled_before_is_not_recorded_and_the_error_says_so(unchecked):
    """PyTorch silently leaves hooks out of code it compiled without them."""
    model, x = block()
    compiled = torch.compile(lambda: model(x), backend="eager")
    compiled()
    with ts.watch(model) as recording:
        compiled()
    with pytest.raises(ValueError, match=r"torch\.compile"):
        recording["self"].survey()


def test_a_compiled_function_runs_its_watched_model_uncompiled(unchecked):
    model, x = block()
    expected = model(x)
    compiled = torch.compile(lambda: model(x), backend="eager")
    with ts.watch(model, keep="steps") as recording:
        assert torch.equal(compiled(), expected)
    assert torch.equal(recording["self"].before, x)
    assert torch.equal(compiled(), expected)
    assert len(recording["self"].calls) == 1  # nothing comes after the block


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_recomputed_for_the_gradient_is_recorded_once(reentrant):
    layer, x = filled(MultiHeadAttention(D, 2)), sequence(3).requires_grad_()
    with ts.watch(layer, keep="steps") as recording:
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    with ts.watch(layer, keep="steps") as plain:
        layer(x)
    assert torch.equal(recording["attention"].trace().weights, plain["attention"].trace().weights)


def test_a_copy_made_inside_the_block_is_not_watched():
    model, inputs = translator()
    with ts.watch(model, keep="steps") as recording:
        expected = model(*inputs)
        for other in (deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(*inputs), expected)
    assert all(len(watched.calls) == 1 for watched in recording.values())
    with ts.watch(other) as again:
        other(*inputs)
    assert all(len(watched.calls) == 1 for watched in again.values())


def test_another_thread_is_named_where_nothing_was_recorded():
    model, inputs = translator()
    with ts.watch(model) as recording:
        thread = threading.Thread(target=lambda: model(*inputs))
        thread.start()
        thread.join()
    with pytest.raises(ValueError, match="ran in another thread") as problem:
        recording["encoder.0.self"].survey()
    assert "torch.compile" not in str(problem.value)


class ByHandAttention(nn.Module):
    """Weights that no function of torch computes as a whole."""

    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def test_an_attention_by_hand_beside_ours_is_named():
    model = nn.ModuleDict({"ours": MultiHeadAttention(D, 2), "by hand": ByHandAttention()})
    with (
        pytest.warns(UserWarning, match="ModuleDict: one attention .* cannot look into: by hand"),
        ts.watch(model) as watched,
    ):
        recording = watched
    assert recording.left_out == ("by hand",)
    assert "not watched" in repr(recording)
    with ts.watch(model, layers="ours") as recording:  # no warning where layers are given
        pass
