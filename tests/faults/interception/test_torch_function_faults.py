"""Calls of attention functions that cannot be recorded or edited: one sentence each, and nothing recorded wrongly."""

import gc
import subprocess
import sys
from functools import partial
from re import escape
from threading import Thread
from types import ModuleType
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention

import telescope as ts

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

X = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))


def is_one_sentence(text):
    return "\n" not in text and ". " not in text


class Calls(nn.Module):
    """Call one function with its input as queries, keys and values."""

    def __init__(self, function=functional.scaled_dot_product_attention) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x, x, x)


def left_out(model, run, *words):
    """Watch a model whose attention runs past the watch; return the warning."""
    with pytest.warns(UserWarning, match="cannot be recorded") as shown, ts.watch(model) as recording:
        run()
    texts = [str(one.message) for one in shown if "cannot be recorded" in str(one.message)]
    assert len(texts) == 1
    assert is_one_sentence(texts[0])
    for word in words:
        assert word in texts[0]
    assert recording.left_out == ("attention",)
    with pytest.raises(ValueError, match="was not watched"):
        recording["attention"].survey()
    with pytest.raises(ValueError, match="was not watched"):
        recording.heads()
    assert "not watched: " in repr(recording)
    return texts[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "transform", [lambda model: torch.func.vmap(model), lambda model: torch.func.grad(lambda x: model(x).sum())]
)
def test_a_call_inside_of_torch_func(transform):
    model = Calls()
    left_out(model, lambda: transform(model)(X), "inside of torch.func, such as vmap or grad")


def test_a_function_that_torch_compiled():
    @torch.compile(backend="eager")
    def compiled(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)

    model = Calls(compiled)
    left_out(model, lambda: model(X), "called no attention function where it can be seen", "without torch.compile")


def test_a_partial_of_a_function_is_not_missed_in_silence():
    model = Calls(partial(functional.scaled_dot_product_attention, scale=1.0))
    left_out(model, lambda: model(X), "called no attention function where it can be seen")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    parts = [torch.randn(3, 2, 4), torch.randn(5, 2, 4)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    model = Calls()
    left_out(model, lambda: model(nested), "its tensors are of the class NestedTensor")


def test_tensors_without_numbers():
    model = Calls()
    left_out(model, lambda: model(X.to("meta")), "on the device meta, which holds no numbers")


@pytest.mark.parametrize(
    ("score_mod", "words"),
    [
        (lambda score, batch, head, query, key: score * 2, "neither adds to a score nor caps it"),
        (lambda score, batch, head, query, key: score.clamp(-1, 1), "neither adds to a score nor caps it"),
        (lambda score, batch, head, query, key: score + X[9], "cannot be run on single scores (IndexError"),
    ],
)
def test_a_score_edit_that_no_definition_says(score_mod, words):
    """Where the function runs at all; the third does not run on any score."""
    model = Calls(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod))
    if "IndexError" in words:
        with pytest.raises(IndexError), ts.watch(model):
            model(X)
        return
    left_out(model, lambda: model(X), words)
    sentence = escape('"attention" ran, and ts.edit cannot change it: its score_mod neither adds')
    with pytest.raises(ValueError, match=sentence), ts.edit(model, ts.mute(heads=0)):
        model(X)


def test_a_log_sum_exp_that_an_edit_does_not_give():
    model = Calls(lambda q, k, v: flex_attention(q, k, v, return_aux=AUX)[0])
    with ts.watch(model) as recording:
        model(X)
    assert recording["attention"].received.shape == (2, 3, 5)
    sentence = escape('"attention" ran, and ts.edit cannot change it: it asks flex_attention for more than the context')
    with pytest.raises(ValueError, match=sentence), ts.edit(model, ts.hide(1)):
        model(X)


try:
    from torch.nn.attention.flex_attention import AuxRequest

    AUX = AuxRequest(lse=True)
except ImportError:  # before 2.9
    test_a_log_sum_exp_that_an_edit_does_not_give = pytest.mark.skip("torch has no AuxRequest")(
        test_a_log_sum_exp_that_an_edit_does_not_give
    )


def test_a_compiled_part_is_refused_before_anything_runs():
    model = nn.Sequential(Calls(), nn.Identity())
    model[0] = torch.compile(model[0], backend="eager")
    with pytest.raises(ValueError, match='its part "0" is compiled, and compiled code runs past') as problem:  # noqa: SIM117
        with ts.watch(model):
            pytest.fail("the block was entered")
    assert is_one_sentence(str(problem.value))


class Products(nn.Module):
    """Call a function that is replaced inside of a block."""

    def forward(self, x):
        return torch.bmm(x.flatten(0, 1), x.flatten(0, 1).mT)


def test_a_compiled_part_that_has_nothing_to_do_with_attention():
    """It is compiled in one graph, before the block and inside of it, and runs after it."""
    model = nn.Sequential(Calls(), torch.compile(Products(), backend="eager", fullgraph=True))
    before = model(X)
    with ts.watch(model) as recording:
        assert torch.equal(model(X), before)
    assert [*recording] == ["0"]
    fresh = nn.Sequential(Calls(), torch.compile(Products(), backend="eager", fullgraph=True))
    with ts.watch(fresh):
        assert torch.equal(fresh(X), before)
    assert torch.equal(fresh(X), before)


FIRST_COMPILED_INSIDE = """
import torch, telescope as ts
attention = torch.nn.MultiheadAttention(4, 2).eval()
x = torch.randn(3, 2, 4)
with torch.no_grad():
    with ts.watch(attention):
        attention(x, x, x)
        torch.compile(lambda a: a + 1, backend="eager", fullgraph=True)(x)
    torch.compile(lambda a: torch.bmm(a, a.mT), backend="eager", fullgraph=True)(x)
    torch.compile(attention, backend="eager", fullgraph=True)(x, x, x)
"""


def test_what_is_first_compiled_inside_of_a_block_spoils_nothing_after_it():
    """Dynamo finds torch's functions by name, once in a process."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", FIRST_COMPILED_INSIDE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_that_never_attends():
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Calls()

        def forward(self, x):
            return x

    model = Idle()
    with ts.watch(model) as recording:
        model(X)
    sentence = '"attend" was not called while it was watched; run the model inside the block'
    for read in (lambda: recording["attend"].received, recording.heads):
        with pytest.raises(ValueError, match=sentence) as problem:
            read()
        assert is_one_sentence(str(problem.value))


def test_another_thread_is_not_watched():
    model = Calls()
    with ts.watch(model) as recording:
        thread = Thread(target=model, args=(X,))
        thread.start()
        thread.join()
    with pytest.raises(ValueError, match="the model ran in another thread"):
        recording.heads()


def test_two_threads_watch_one_model():
    model = Calls()
    found = {}

    def watch(number):
        with ts.watch(model) as recording:
            for _ in range(5):
                model(X * number)
        found[number] = recording["attention"].calls

    threads = [Thread(target=watch, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2):
        with ts.watch(model) as alone:
            model(X * number)
        assert len(found[number]) == 5
        assert all(torch.equal(call.survey().received, alone["attention"].received) for call in found[number])


def test_a_module_that_two_names_share():
    """The first name, and a number for the second run."""
    shared = Calls()
    model = nn.ModuleDict({"first": shared, "second": shared})
    model.forward = lambda x: model["second"](model["first"](x) * 2)
    with ts.watch(model) as recording:
        model(X)
    assert [*recording] == ["first", "first.2"]
    with ts.watch(shared) as alone:
        shared(shared(X) * 2)
    assert len(alone["attention"].calls) == 2  # runs of the module by itself are separate
    for name, call in zip(("first", "first.2"), alone["attention"].calls, strict=True):
        assert torch.equal(recording[name].received, call.survey().received)


def test_an_exception_inside_of_the_model():
    class Fails(Calls):
        def forward(self, x):
            super().forward(x)
            raise KeyError

    before = functional.scaled_dot_product_attention
    model = Fails()
    with pytest.raises(KeyError), ts.watch(model) as recording:
        model(X)
    assert functional.scaled_dot_product_attention is before
    assert recording["attention"].received.shape == (2, 3, 5)


def test_functions_are_restored_whatever_happens():
    names = ["scaled_dot_product_attention", "multi_head_attention_forward"]
    before = [getattr(functional, name) for name in names]
    library = ModuleType("of_a_user")
    library.attend = functional.scaled_dot_product_attention
    sys.modules["of_a_user"] = library
    model = Calls(lambda q, k, v: library.attend(q, k, v))
    outer = ts.watch(model)
    outer.__enter__()
    with ts.edit(model, ts.mute(heads=0)):
        assert library.attend is not before[0]
        outer.__exit__(None, None, None)  # left before the inner block
        edited = model(X)
    assert not edited[:, 0].any()
    assert model(X)[:, 0].any()
    assert [getattr(functional, name) for name in names] == before
    assert library.attend is before[0]
    del sys.modules["of_a_user"]


def test_nothing_of_a_model_is_kept_alive():
    model = Calls()
    with ts.watch(model) as recording:
        model(X)
    gone = ref(model)
    del model
    recording.heads()
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------------------------------- output projections


class Projected(nn.Module):
    """Self-attention of two heads, and an output projection, maybe of a gated context."""

    def __init__(self, gated) -> None:
        super().__init__()
        self.out_proj = nn.Linear(8, 8)
        self.gated = gated

    def forward(self, x):
        y = functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)
        return self.out_proj(y * torch.sigmoid(y) if self.gated else y)


def test_norms_of_an_output_projection_that_does_not_project_the_context():
    x = X[:, :2]
    model = Projected(gated=False)
    with ts.watch(model, keep="queries-keys", also="norms") as recording:
        model(x)
    norms = recording["attention"].call._kept["norms"].tensor
    weight = model.out_proj.weight.unflatten(1, (2, 4)).transpose(0, 1)  # (head, feature, d_v)
    torch.testing.assert_close(norms, torch.einsum("hfd,bhkd->bhkf", weight, x).norm(dim=-1))
    sentence = 'also="norms" needs the output projection of "attention", and what goes into the module'
    model = Projected(gated=True)
    with pytest.raises(ValueError, match=sentence) as problem, ts.watch(model, keep="queries-keys", also="norms"):
        model(x)
    assert is_one_sentence(str(problem.value))


# --------------------------------------------------------------------------------------- code that does not tell


class ByName(nn.Module):
    """Find the function by a name that is put together."""

    def forward(self, x):
        return getattr(functional, "_".join(["scaled", "dot", "product", "attention"]))(x, x, x)


class HiddenAttention(ByName):
    """The name of its class looks like that of an attention."""


@pytest.mark.filterwarnings("ignore:Sequential. one attention computes")
def test_an_attention_that_shows_itself_when_it_runs():
    model = nn.Sequential(HiddenAttention(), Calls())
    with ts.watch(model) as recording:
        model(X)
    assert sorted(recording) == ["0", "1"]
    assert recording.left_out == ()
    with ts.watch(Calls()) as alone:
        model[0](X)
    assert not any(alone["attention"].calls)  # the call of another model is not its own
    assert recording["0"].received.shape == (2, 3, 5)


@pytest.mark.filterwarnings("ignore:Sequential. one attention computes")
def test_an_edit_of_every_layer_does_not_miss_it():
    model = nn.Sequential(HiddenAttention(), Calls())
    sentence = '"0" attends, which its code did not tell before it ran, and was not edited; enter the block again'
    with pytest.raises(RuntimeError, match=sentence) as problem, ts.edit(model, ts.mute(heads=0)):
        model(X)
    assert is_one_sentence(str(problem.value))
    with ts.edit(model, ts.mute(heads=0)):
        assert not model(X)[:, 0].any()


# ----------------------------------------------------------------------------------------------- calls that wait


class Writes(nn.Module):
    """Write to the queries after the attention ran."""

    def forward(self, x):
        queries = x.clone()
        context = functional.scaled_dot_product_attention(queries, x, x)
        queries.zero_()
        return context


def test_queries_that_are_written_to_after_the_attention_ran():
    sentence = 'queries, keys or values of "attention" were written to after the attention had run'
    model = Writes()
    with pytest.raises(RuntimeError, match=sentence) as problem, ts.watch(model):
        model(X)
    assert 'keep="steps" copies them' in str(problem.value)
    with ts.watch(model, keep="steps") as recording:
        model(X)
    model = Calls()
    with ts.watch(model) as alone:
        model(X)
    torch.testing.assert_close(recording["attention"].received, alone["attention"].received)


def test_queries_of_inference_mode_do_not_wait():
    """Nothing tells that somebody has written to them."""
    model = Writes()
    with torch.inference_mode(), ts.watch(model) as recording:
        model(X.clone())
    model = Calls()
    with ts.watch(model) as alone:
        model(X)
    torch.testing.assert_close(recording["attention"].received, alone["attention"].received)


def waits(recording):
    """Return whether calls wait although their block has ended."""
    return recording._queue.collect_steps is not None


def test_calls_wait_while_nobody_else_holds_their_tensors():
    class Projects(Calls):
        kept = None

        def forward(self, x):
            queries = x * 2
            return self.function(queries, x + 1, (x + 2)[:])

    class Keeps(Projects):
        def forward(self, x):
            self.kept = (x * 2).flatten(2).unflatten(2, (5, 4))
            return self.function(self.kept, x + 1, x + 2)

    for kind, expected in ((Calls, False), (Projects, True), (Keeps, False)):
        model = kind()
        with torch.no_grad(), ts.watch(model) as recording:
            model(X)
        assert waits(recording) == expected
        with ts.watch(model, keep="queries-keys") as alone:
            model(X)
        torch.testing.assert_close(recording["attention"].received, alone["attention"].received)
        assert not waits(recording)


def test_inputs_that_a_user_writes_to_after_the_block():
    """They may be views of what the attention was passed: then nothing waits."""
    x = X.clone()
    model = Calls()
    with ts.watch(model) as recording:
        model(x)
    x.zero_()
    with ts.watch(model) as alone:
        model(X)
    assert torch.equal(recording["attention"].received, alone["attention"].received)
