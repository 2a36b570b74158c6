"""Threads that enter and leave blocks while others run the same model: nobody fails, nobody gets another's numbers."""

import threading
from random import Random

import pytest
import torch
from fuzz import threads
from torch.testing import assert_close

import telescope as ts
from support.watched import FAMILIES, IDS
from telescope.interception import interceptor, module_hook
from telescope.models import GPT, GPTConfig


@pytest.mark.parametrize("kind", threads.KINDS)
def test_threads_that_edit_watch_and_run(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "KINDS", (kind,))
    monkeypatch.setattr(threads, "PASSES", 15)
    assert threads.run(Random(0), tmp_path).units == 90


# -------------------------------------------------------------------------------------- the races, one step at a time


def in_thread(function):
    """Run a function in another thread to its end; raise what it raised."""
    problems = []

    def run():
        try:
            function()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for problem in problems:
        raise problem


class Stops:
    """A hook of a user that lets another thread do something in the middle of a pass, once."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args):
        function, self.function = self.function, None
        if function is not None:
            in_thread(function)


def entered(block):
    block.__enter__()
    return block


def leave(block):
    block.__exit__(None, None, None)


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=61, max_positions=16, d_model=16, blocks=2, heads=4)).eval()


@pytest.mark.parametrize("make", [lambda model: ts.edit(model, ts.mute(0, 1)), ts.watch], ids=["edit", "watch"])
@pytest.mark.parametrize("registers", ["register_forward_pre_hook", "register_forward_hook"])
@torch.no_grad()
def test_a_block_that_is_left_while_its_hook_waits(make, registers):
    """torch has copied the hooks of a module, and another thread leaves the block before their turn."""
    model = gpt()
    expected = model(IDS)
    for part in (model.blocks[0].self_attention, model.blocks[0].self_attention.attend, model.embedding):
        blocks = []
        handle = getattr(part, registers)(Stops(lambda blocks=blocks: leave(blocks[0])))
        in_thread(lambda blocks=blocks: blocks.append(entered(make(model))))
        assert torch.equal(model(IDS), expected)
        handle.remove()
    assert not any(module_hook._hooks.values())


@torch.no_grad()
def test_a_block_that_is_entered_between_a_hook_and_its_options(monkeypatch):
    """torch adds a hook first and its options next; a pass in between sees the hook without them."""
    model = gpt()
    expected = model(IDS)
    attend = model.blocks[0].self_attention.attend
    passes = []

    class Options(dict):
        """Run the model just before an option is set."""

        def __setitem__(self, key, value):
            if not passes:
                passes.append(None)
                in_thread(lambda: passes.append(run()))
            super().__setitem__(key, value)

    @torch.no_grad()
    def run():
        return model(IDS)

    for name in ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"):
        monkeypatch.setattr(attend, name, Options())
        with ts.watch(model) as recording:
            assert torch.equal(model(IDS), expected)
        assert torch.equal(passes.pop(), expected)
        assert len(recording["blocks.0.self"].calls) == 1
        passes.clear()


def test_a_hook_that_is_called_without_its_options_passes():
    """A pass has found no options of a hook that another thread adds, and calls it when the hook has its listeners."""
    model = gpt()
    with ts.watch(model), ts.edit(model, ts.mute(0)):
        for part in model.modules():
            for hook in part._forward_pre_hooks.values():
                assert hook(part, ()) is None
            for hook in part._forward_hooks.values():
                assert hook(part, (), torch.ones(1)) is None
        assert sum(map(len, module_hook._hooks.values())) > 4


@torch.no_grad()
def test_a_plain_pass_ends_after_the_last_block_was_left():
    """A pass begins while another thread edits, with a name of ours and a mask; then the edit ends."""
    for implementation in ("sdpa", "eager"):
        model = FAMILIES["llama"].model(implementation)
        kept = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
        expected = model(IDS, attention_mask=kept).logits
        for part in (model.model.layers[0], model.model.layers[1].self_attn.q_proj):
            blocks = []
            handle = part.register_forward_pre_hook(Stops(lambda blocks=blocks: leave(blocks[0])))
            in_thread(lambda model=model, blocks=blocks: blocks.append(entered(ts.edit(model, ts.mute(0)))))
            assert torch.equal(model(IDS, attention_mask=kept).logits, expected)
            handle.remove()
            assert type(model.config._attn_implementation) is str


@torch.no_grad()
def test_a_name_that_was_read_can_be_looked_up_later():
    """A pass has read the name of its implementation, and looks the function up when the block was left."""
    model = FAMILIES["llama"].model("sdpa")
    with ts.watch(model):
        name = model.config._attn_implementation
    functions = transformers_functions(name)
    assert None not in functions


def transformers_functions(name):
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return AttentionInterface().get(name), ALL_MASK_ATTENTION_FUNCTIONS.get(name)


@torch.no_grad()
def test_another_thread_leaves_what_it_found():
    """A pass outside of all blocks does not switch a config, even if it calls a hook that was removed meanwhile."""
    model = FAMILIES["llama"].model("sdpa")
    with ts.watch(model):
        hook = next(hook for hook in model._forward_pre_hooks.values())
        listeners = hook.listeners
    for listener in listeners:
        in_thread(lambda listener=listener: listener(model, (IDS,), {}))
    assert type(model.config._attn_implementation) is str


@torch.no_grad()
def test_a_watch_does_not_remember_the_padding_of_another_thread():
    """Flash attention is passed no padding: the definition is read with that of the latest mask of its size."""
    model = FAMILIES["llama"].model("sdpa")
    with ts.watch(model):
        (watched,) = {one for known in interceptor.interceptors.values() for one in known}
        model(IDS)
        before = dict(watched.reader._offsets)
        in_thread(lambda: model(IDS, attention_mask=torch.tensor([[1] * 8, [0] * 3 + [1] * 5])))
        assert watched.reader._offsets == before
        assert len(before) == 1


@torch.no_grad()
def test_two_threads_watch_one_model_each_its_own_calls():
    model = FAMILIES["llama"].model()
    recordings = []

    @torch.no_grad()
    def watch_elsewhere():
        with ts.watch(model) as recording:
            model(IDS[:, :5])
        recordings.append(recording)

    with ts.watch(model) as recording:
        in_thread(watch_elsewhere)
        model(IDS)
        model(IDS)
    assert {len(one.calls) for one in recording.values()} == {2}
    assert {len(one.calls) for one in recordings[0].values()} == {1}
    assert {one.call.size for one in recordings[0].values()} == {(5, 5)}


def test_generate_may_compile_again_when_the_last_block_was_left():
    """The block that was entered first is left first."""
    model = FAMILIES["llama"].model()
    before = model.generation_config.disable_compile
    blocks = []
    in_thread(lambda: blocks.append(entered(ts.edit(model, ts.redefine(0, lambda own: own)))))
    second = entered(ts.edit(model, ts.redefine(1, lambda own: own)))
    in_thread(lambda: leave(blocks[0]))
    assert model.generation_config.disable_compile
    leave(second)
    assert model.generation_config.disable_compile == before


def test_a_backward_pass_of_another_thread_is_not_edited():
    """Gradient checkpointing runs the model again in the backward pass."""
    model = FAMILIES["llama"].model().train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    weight = model.model.layers[0].self_attn.o_proj.weight

    def gradient():
        return torch.autograd.grad(model(IDS, use_cache=False).logits.square().sum(), weight)[0]

    expected = gradient()
    blocks = []
    in_thread(lambda: blocks.append(entered(ts.edit(model, ts.mute(0)))))
    assert_close(gradient(), expected, rtol=0.0, atol=0.0)
    in_thread(lambda: leave(blocks[0]))
    with ts.edit(model, ts.mute(0)):
        assert not gradient().any()  # in its own thread the edit holds in the backward pass too
