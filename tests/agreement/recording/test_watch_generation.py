"""Rows of a model that writes are surveyed late, many at once: the numbers are those of rows surveyed at once."""

import copy
import gc
import pickle
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.testing import assert_close

import telescope as ts
from support.huggingface import transformers
from support.watched import FAMILIES, IDS, PADDED_LEFT, TRANSLATORS, WRITERS
from telescope.models import GPT, GPTConfig, Transformer, TransformerConfig
from telescope.recording import continuation, recorded_call, summaries_call
from telescope.recording.survey_queue import SurveyQueue

TOKENS = 11


@contextmanager
def surveyed_at_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries_call, "MAX_WAITING", 0)
        yield


@contextmanager
def few_wait():
    """Three rows wait at most, so that a generation surveys several times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuation, "ROOM", 3)
        yield


def calls_of(recording):
    return [(name, call) for name, watched in recording.items() for call in watched.calls]


def assert_same(late, at_once):
    assert [name for name, _ in calls_of(late)] == [name for name, _ in calls_of(at_once)]
    for (name, one), (_, other) in zip(calls_of(late), calls_of(at_once), strict=True):
        assert (name, one.size, one.rows) == (name, other.size, other.rows)
        assert one.attention == other.attention
        assert one._kept.keys() == other._kept.keys(), name
        for part, stored in one._kept.items():
            close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}  # NaN are shares of an unknown text
            assert_close(stored.tensor, other._kept[part].tensor, **close, msg=lambda said, at=part: f"{at}: {said}")
        for mine, theirs in zip(one._fingerprints, other._fingerprints, strict=True):
            assert torch.equal(mine.tensor, theirs.tensor)


def generated(model, *, options, inputs):
    torch.manual_seed(0)
    with ts.watch(model, **options) as recording, torch.no_grad():
        ids = model.generate(**inputs)
    return recording, ids


def check(model, inputs, **options):
    """Compare late with at once, twice: with all rows surveyed at the end, and three at a time."""
    with surveyed_at_once():
        at_once, expected = generated(model, options=options, inputs=inputs)
    late, ids = generated(model, options=options, inputs=inputs)
    assert torch.equal(ids, expected)
    assert_same(late, at_once)
    with few_wait():
        assert_same(generated(model, options=options, inputs=inputs)[0], at_once)
    return late


WAYS = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"num_beams": 3},
    "several": {"do_sample": True, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "static": {"cache_implementation": "static"},
    "inference": {},
}


def asked(family, way="greedy"):
    """Return the arguments of generate; models that take candidates back write for one prompt alone."""
    one = way == "prompt lookup"
    ids = torch.tensor([[1, 5, 2, 58, 1, 5, 2, 58, 1, 5]]) if one else IDS
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": TOKENS, "pad_token_id": 0}
    return inputs | {"do_sample": False, "eos_token_id": None} | WAYS[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_ways_of_writing(family, way):
    if way == "inference":
        with torch.inference_mode():
            check(FAMILIES[family].model(), asked(family, way))
        return
    check(FAMILIES[family].model(), asked(family, way))


@pytest.mark.parametrize("family", [*WRITERS, *TRANSLATORS])
def test_families(family):
    inputs = asked(family)
    if family in WRITERS:
        inputs |= {"attention_mask": PADDED_LEFT}
    check(FAMILIES[family].model(), inputs)


@pytest.mark.parametrize(
    "options", [{"top": 0}, {"heads": [1, 0]}, {"queries": [-1]}, {"queries": slice(2, 12)}], ids=str
)
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_options(family, options):
    check(FAMILIES[family].model(), asked(family) | {"attention_mask": PADDED_LEFT}, **options)


def test_an_assistant_model():
    """Candidates of a smaller model, of which some are taken back."""
    model, smaller = FAMILIES["llama"].model(), FAMILIES["llama"].model()
    with torch.no_grad():
        smaller.lm_head.weight.add_(torch.randn_like(smaller.lm_head.weight) * 0.3)
    check(model, asked("llama", "prompt lookup") | {"prompt_lookup_num_tokens": None, "assistant_model": smaller})


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "mistral"])
def test_steps_do_not_read_the_keys(family, monkeypatch):
    """Where a cache tells that it only grew, no step compares keys, for which the host would wait for a GPU."""
    model, compared = FAMILIES[family].model(), []
    monkeypatch.setattr(recorded_call, "same_bits", lambda *_: compared.append(1) or True)
    recording, _ = generated(model, options={}, inputs=asked(family))
    assert not compared
    assert {len(watched.calls) for watched in recording.values()} == {1}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_tokens_of_a_step_are_its_own(family):
    """Two texts of one length, each with two tokens more: no layer takes over what another text's step had."""
    model = FAMILIES[family].model()
    texts = IDS[:1, :5], IDS[1:, :5]
    with ts.watch(model) as recording, torch.no_grad():
        written = [model.generate(text, max_new_tokens=3, do_sample=False, eos_token_id=None) for text in texts]
    for watched in recording.values():
        assert [call.query_ids.tolist() for call in watched.calls] == [ids[:, :-1].tolist() for ids in written]


def test_rows_are_read_while_they_wait():
    """Inside the block, after each step."""
    model = FAMILIES["llama"].model()
    cache = transformers.DynamicCache(config=model.config)
    with ts.watch(model) as recording, torch.no_grad():
        for count in range(1, 6):
            model(IDS[:, count - 1 : count], past_key_values=cache)
            watched = recording["model.layers.1"]
            assert watched.entropy.shape[-1] == count
            assert_close(watched.received.sum(-1), torch.full_like(watched.received.sum(-1), count))


@pytest.mark.parametrize("change", ["reorder", "crop", "repeat"])
def test_a_cache_that_is_changed_between_two_steps(change):
    """What waited is surveyed with the keys it saw; the next call begins a new sequence, or continues the old one."""
    model = FAMILIES["llama"].model()

    def run():
        cache = transformers.DynamicCache(config=model.config)
        with ts.watch(model) as recording, torch.no_grad():
            model(IDS[:, :4], past_key_values=cache)
            model(IDS[:, 4:5], past_key_values=cache)
            model(IDS[:, 5:6], past_key_values=cache)
            if change == "reorder":
                cache.reorder_cache(torch.tensor([1, 0]))
            elif change == "crop":
                cache.crop(-1)
            else:
                cache.batch_repeat_interleave(2)
            ids = IDS.repeat_interleave(2, 0) if change == "repeat" else IDS
            model(ids[:, 6:7], past_key_values=cache)
        return recording

    with surveyed_at_once():
        expected = run()
    late = run()
    assert_same(late, expected)
    assert len(late["model.layers.0"].calls) == 2


@pytest.mark.parametrize("unseen", [False, True])
def test_keys_that_change_while_rows_wait_are_an_error(unseen):
    """A write to the cache's tensor, also one through .data, which changes no version: no wrong numbers."""
    model = FAMILIES["llama"].model()
    cache = transformers.DynamicCache(config=model.config)

    def write():
        with ts.watch(model), torch.no_grad():
            model(IDS[:, :4], past_key_values=cache)
            model(IDS[:, 4:5], past_key_values=cache)
            keys = cache.layers[1].keys
            (keys.data if unseen else keys)[:, :, 0] += 1.0
            model(IDS[:, 5:6], past_key_values=cache)

    with pytest.raises(RuntimeError, match=r'keys of "model\.layers\.1\.self_attn" were (changed|written to)'):
        write()


@pytest.mark.parametrize("write", [ts.decoding.generate, ts.decoding.beam], ids=["generate", "beam"])
@pytest.mark.parametrize("kind", ["gpt", "translator"])
def test_models_of_telescope(kind, write):
    torch.manual_seed(0)
    if kind == "gpt":
        model = GPT(GPTConfig(vocabulary=64, d_model=32, heads=4, blocks=2, max_positions=64)).eval()
    else:
        model = Transformer(TransformerConfig(vocabulary=64, d_model=32, heads=4, max_positions=64)).eval()
        model.special = ts.models.Special(start=0)

    def run():
        with ts.watch(model) as recording:
            written = write(model, IDS, max_new_tokens=TOKENS, end=())
        return recording, written

    with surveyed_at_once():
        expected, written = run()
    late, again = run()
    assert written == again
    assert_same(late, expected)


def test_rows_that_wait_are_surveyed_in_smaller_parts_when_memory_runs_out(monkeypatch):
    """First with fewer layers at once; if not one layer fits, nothing is lost, and the next read tries again."""
    model, survey, free = FAMILIES["llama"].model(), SurveyQueue.run_survey, {"layers": 2}

    def run():
        cache = transformers.DynamicCache(config=model.config)
        with ts.watch(model) as recording, torch.no_grad():
            model(IDS[:, :4], past_key_values=cache)
            recording._flush()
            for i in range(4, 8):
                model(IDS[:, i : i + 1], past_key_values=cache)
            monkeypatch.setattr(SurveyQueue, "run_survey", within)
            for free["layers"] in tries:
                with nullcontext() if free["layers"] else pytest.raises(torch.OutOfMemoryError):
                    recording._flush()
            monkeypatch.undo()
        return recording

    def within(queue, inputs, *rest, **options):
        layers = len(inputs.queries) // len(IDS)
        seen.append(layers)
        if layers > free["layers"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return survey(queue, inputs, *rest, **options)

    seen, tries = [], (2,)
    expected = run()
    assert seen == [2]
    seen, tries = [], (0, 1)
    late = run()
    assert seen == [2, 1, 2, 1, 1]
    assert_same(late, expected)


def waits(recording):
    """Return whether calls wait although their block has ended."""
    return recording._queue.collect_steps is not None


@pytest.mark.parametrize("steps", [1, 4, 8, 40])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_generation_waits_until_somebody_reads(family, steps):
    """Prompt and steps, over a cache that grows; a prompt of eight tokens and as many steps keep their own ids."""
    model = FAMILIES[family].model()
    inputs = asked(family) | {"max_new_tokens": steps + 1}
    with surveyed_at_once():
        at_once, written = generated(model, options={}, inputs=inputs)
    with ts.watch(model) as recording, torch.no_grad():
        ids = model.generate(**inputs)
        with ts.watch(FAMILIES["bert"].model()):
            pass
    assert waits(recording)
    assert torch.equal(ids, written)
    assert_same(recording, at_once)
    assert not waits(recording)
    for watched in recording.values():
        assert torch.equal(watched.call.query_ids, written[:, :-1])


def test_texts_that_wait_in_one_block():
    """Several generations, one read in between, and a pass of the model alone."""
    model = FAMILIES["llama"].model()

    def run(reads):
        with ts.watch(model) as recording, torch.no_grad():
            model.generate(**asked("llama"))
            if reads:
                assert recording["model.layers.0"].received.shape[-1] == 8 + TOKENS - 1
            model.generate(**asked("llama", "several"))
            model(IDS[:, :5])
            model.generate(**asked("llama") | {"max_new_tokens": 1})
        return recording

    with surveyed_at_once():
        torch.manual_seed(0)
        expected = run(reads=True)
    for reads in (True, False):
        torch.manual_seed(0)
        assert_same(run(reads), expected)
    assert len(expected["model.layers.0"].calls) == 4


def test_more_steps_than_wait():
    """128 steps wait at most: then prompt and steps are recorded, and later ones wait anew."""
    model = FAMILIES["llama"].model()
    inputs = asked("llama") | {"max_new_tokens": 150}
    first, _ = generated(model, options={}, inputs=inputs)
    second, _ = generated(model, options={}, inputs=inputs)
    with surveyed_at_once():
        expected, _ = generated(model, options={}, inputs=inputs)
    assert_same(first, expected)
    assert_same(second, expected)


def test_a_generation_that_waits_against_float64():
    model = FAMILIES["llama"].model()
    generated(model, options={}, inputs=asked("llama"))
    recording, ids = generated(model, options={}, inputs=asked("llama"))
    assert waits(recording)
    eager = FAMILIES["llama"].model("eager").double()
    with torch.no_grad():
        truth = eager(ids[:, :-1], output_attentions=True).attentions
    for watched, weights in zip(recording.values(), truth, strict=True):
        assert_close(watched.received.double(), weights.sum(2), rtol=0, atol=1e-5)
        entropy = -weights.xlogy(weights).sum(-1)
        assert_close(watched.entropy.double(), entropy, rtol=0, atol=1e-5)
        shares, keys = watched.top
        assert_close(shares.double(), weights.gather(-1, keys.clamp(min=0).long()) * (keys >= 0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_is_written_to_after_the_block(mode):
    """Tensors of inference mode do not tell that somebody wrote to them: nothing waits there."""
    model = FAMILIES["llama"].model()
    for run in ("generate", "pass"):
        for attempt in range(2):
            with ts.watch(model) as recording, mode():
                if run == "generate":
                    cache = model.generate(**asked("llama"), return_dict_in_generate=True).past_key_values
                else:
                    cache = model(IDS, use_cache=True).past_key_values
            if not attempt:
                expected = recording["model.layers.0"].received
        assert waits(recording) == (mode is torch.no_grad)
        with mode():
            cache.layers[0].keys.zero_()
        if mode is torch.no_grad:
            with pytest.raises(RuntimeError, match="were written to after the attention had run"):
                recording.heads()
        else:
            assert_close(recording["model.layers.0"].received, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_that_is_reset_inside_of_the_block(mode):
    model = FAMILIES["llama"].model()
    for _ in range(2):
        cache = transformers.DynamicCache(config=model.config)
        with ts.watch(model) as recording, mode():
            model.generate(**asked("llama"), past_key_values=cache)
            cache.reset()
        assert recording["model.layers.0"].received.sum(-1).allclose(torch.tensor(8.0 + TOKENS - 1))


def test_what_waits_keeps_no_cache_alive():
    model = FAMILIES["llama"].model()
    generated(model, options={}, inputs=asked("llama"))
    with ts.watch(model) as recording, torch.no_grad():
        cache = model.generate(**asked("llama"), return_dict_in_generate=True).past_key_values
    alive = weakref.ref(cache), weakref.ref(cache.layers[0])
    del cache
    gc.collect()
    assert waits(recording)
    assert not any(one() for one in alive)


def write(model, cache, steps, between=None):
    """Read IDS, and write some tokens after it, step by step."""
    ids = IDS
    for step in range(steps + 1):
        ids = model(ids, past_key_values=cache).logits[:, -1:].argmax(-1)
        if between is not None:
            between(step)


def test_steps_that_wait_keep_the_last_keys_alone():
    """Each step has a tensor of all keys so far: all of them would be the square of the text."""
    model = FAMILIES["llama"].model()
    generated(model, options={}, inputs=asked("llama"))
    cache = transformers.DynamicCache(config=model.config)
    keys = []

    def look(step):
        keys.append(weakref.ref(cache.layers[0].keys))
        gc.collect()
        assert sum(one() is not None for one in keys) <= 2  # the prompt's, and the last

    with ts.watch(model) as recording, torch.no_grad():
        write(model, cache, 6, look)
    assert waits(recording)
    assert len(recording["model.layers.0"].received[0, 0]) == IDS.shape[1] + 6


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_step_that_stops_midway_is_left_out(family):
    model = FAMILIES[family].model()

    def run(stops):
        cache = transformers.DynamicCache(config=model.config)
        late = []

        def stop(*_):
            late.append(None)
            if stops and len(late) == 6:
                raise KeyboardInterrupt

        last = next(one for name, one in model.named_modules() if name.endswith(("h.1", "layers.1")))
        handle = last.register_forward_pre_hook(stop)
        with ts.watch(model) as recording, torch.no_grad():
            try:
                write(model, cache, 5 if stops else 4)
            except KeyboardInterrupt:
                assert len(late) == 6
        handle.remove()
        return recording

    generated(model, options={}, inputs=asked(family))
    assert_same(run(True), run(False))


def test_keys_that_are_written_to_between_two_waiting_steps_are_an_error():
    model = FAMILIES["llama"].model()
    generated(model, options={}, inputs=asked("llama"))
    cache = transformers.DynamicCache(config=model.config)

    def change(step):
        if step == 3:
            cache.layers[0].keys.mul_(2)

    with ts.watch(model) as recording, torch.no_grad():
        write(model, cache, 6, change)
    with pytest.raises(RuntimeError, match="were written to after the attention had run"):
        recording.heads()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_cache_is_its_own(copied):
    """Made while a text waits: to crop the copy changes neither the cache nor the recording."""
    model = FAMILIES["llama"].model()
    generated(model, options={}, inputs=asked("llama"))
    cache = transformers.DynamicCache(config=model.config)
    with ts.watch(model) as recording, torch.no_grad():
        model.generate(**asked("llama"), past_key_values=cache)
        other = copied(cache)
        other.crop(-2)
        assert other.get_seq_length() < cache.get_seq_length() == 8 + TOKENS - 1
        again = copied(other)
        again.crop(-2)
        assert again.get_seq_length() < other.get_seq_length()
    assert waits(recording)
    assert recording["model.layers.0"].received.shape[-1] == 8 + TOKENS - 1


def test_steps_of_a_prompt_that_cannot_be_recorded_go_with_it():
    """The next text is recorded as if it came first, and gets no steps of the text before."""
    model = FAMILIES["llama"].model()
    other = asked("llama") | {"input_ids": IDS.flip(1)}
    expected, _ = generated(model, options={}, inputs=other)
    cache = transformers.DynamicCache(config=model.config)
    with ts.watch(model) as recording, torch.no_grad():
        model.generate(**asked("llama"), past_key_values=cache)
        waiting = recording._queue.collect_steps.__self__.log._calls[0].tensors[1]
        waiting.add_(1.0)
        with pytest.raises(RuntimeError, match="were written to after the attention had run"):
            recording.heads()
        model.generate(**other)
    assert_same(recording, expected)
