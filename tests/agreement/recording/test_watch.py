"""A recording holds what ran: compared with hooks of the test itself, and with the same model run all at once."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import telescope as ts
from support.strategies import Shape, composite, definitions, position_masks, seeds, shapes, tensors
from support.watching import KEEPS, D, Museum, Translator, causal, filled, sequence
from telescope.attention import key_heads_of, restrict_to_heads
from telescope.engines import reference
from telescope.layers import AddNorm, Attend, LuongAttention
from telescope.recording.names import attention_name

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
NUMBERS = ("lse", "received", "entropy", "top_weights")
PIECES = ([6], [3, 1, 1, 1], [1] * 6, [2, 3, 1], [4, 2])


def ran(model, call):
    """Return name → (queries, keys, values, attention, context), by plain hooks."""
    seen, handles = {}, []
    for path, module in model.named_modules():
        if isinstance(module, Attend):
            handles.append(
                module.register_forward_hook(
                    lambda _, inputs, output, name=attention_name(path): seen.__setitem__(name, (*inputs, output))
                )
            )
    call()
    for handle in handles:
        handle.remove()
    return seen


def assert_same_survey(got, truth):
    for name in NUMBERS:
        one, two = getattr(got.summary, name), getattr(truth.summary, name)
        assert_close(one, two, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(got.top.keys, truth.top.keys)


MODELS = {
    "post": (lambda: Translator(), (5, 4), {}),
    "pre": (lambda: Translator(pre_norm=True), (5, 4), {}),
    "padded": (lambda: Translator(), (5, 4), {"source_mask": ts.padding([5, 3]), "mask": ts.window(2)}),
    "museum": (Museum, (6, 7), {}),
}


@pytest.fixture(params=MODELS)
def drawn(request):
    make, sizes, masks = MODELS[request.param]
    model, inputs = filled(make()), [sequence(n, seed=n) for n in sizes]
    return model, lambda: model(*inputs, **masks)


def test_every_step_equals_what_ran(drawn):
    model, call = drawn
    with ts.watch(model, keep="steps") as recording:
        call()
    truth = ran(model, call)
    assert set(recording) == set(truth)
    for name, watched in recording.items():
        queries, keys, values, attention, context = truth[name]
        steps, law = watched.trace(), reference.steps(queries, keys, values, attention)
        for step in ("queries", "keys", "values", "scores", "scaled", "masked", "weights", "context"):
            assert_close(getattr(steps, step), getattr(law, step).detach(), **CLOSE, msg=lambda m, s=step: f"{s}: {m}")
        assert_close(steps.context, context.detach(), **CLOSE)
        assert steps.attention == attention


@pytest.mark.parametrize("keep", KEEPS)
def test_surveys_equal_those_of_what_ran(drawn, keep):
    model, call = drawn
    with ts.watch(model, keep=keep) as recording:
        call()
    for name, (queries, keys, _, attention, _) in ran(model, call).items():
        if name.startswith("encoder") and attention.mask == ts.padding([5, 3]):  # padding asks nothing
            attention = attention.with_extra_mask(
                ts.from_tensor(torch.tensor([[1] * 5, [1] * 3 + [0] * 2]).bool()[:, None, :, None])
            )
        truth = ts.survey(queries, keys, attention, engine="reference")
        assert_same_survey(recording[name].survey(), truth)
        for number in range(queries.shape[1]):
            assert_same_survey(recording[name].head(number), truth.head(number))


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_residual_stream_equals_what_ran(pre_norm):
    model, source, target = filled(Translator(pre_norm=pre_norm)), sequence(5), sequence(4, seed=1)
    through = []
    handles = [
        module.register_forward_hook(lambda _, inputs, output: through.append((inputs[0], output)))
        for module in model.modules()
        if isinstance(module, AddNorm)
    ]
    with ts.watch(model, keep="steps") as recording:
        model(source, target)
    for handle in handles:
        handle.remove()
    attended = [around for i, around in enumerate(through) if i not in (1, 3, 6, 9)]  # the others feed forward
    for (before, after), watched in zip(attended, recording.values(), strict=True):
        assert torch.equal(watched.before, before)
        assert torch.equal(watched.after, after)


# ---------------------------------------------------------------------------------------------------------- some heads


@composite
def some_heads(draw):
    shape = draw(shapes())
    which = draw(st.lists(st.integers(0, shape.heads - 1), min_size=1, unique=True))
    return shape, draw(definitions(shape)), torch.tensor(which), draw(seeds)


@given(some_heads())
def test_a_definition_restricted_to_heads_computes_what_they_did(drawn):
    shape, attention, which, seed = drawn
    q, k, v = tensors(shape, seed)
    whole = ts.trace(q, k, v, attention)
    serving = key_heads_of(which, shape.heads, shape.key_heads)
    part = ts.trace(q[:, which], k[:, serving], v[:, serving], restrict_to_heads(attention, which, shape.heads))
    assert_close(part.weights, whole.weights[:, which], **CLOSE)
    assert_close(part.context, whole.context[:, which], **CLOSE)


@settings(max_examples=40)
@given(some_heads())
def test_a_survey_of_one_head(drawn):
    shape, attention, which, seed = drawn
    q, k, v = tensors(shape, seed)
    seen, number = ts.survey(q, k, attention, values=v), int(which[0])
    one, weights = seen.head(number), ts.trace(q, k, v, attention).weights[:, number : number + 1]
    assert_close(one.received, weights.sum(-2), **CLOSE)
    assert_close(one.rows(range(shape.queries)), weights, **CLOSE)
    assert_close(one.map(shape.queries, shape.keys), weights, **CLOSE)
    assert_close(one.cell(-1, -1), weights[..., -1, -1], **CLOSE)
    assert_close(one.context, seen.context[:, number : number + 1], **CLOSE)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("heads", [[1], [3, 0], [0, 1, 2], [2, 3], [0, 1, 2, 3]])
def test_selected_heads_have_the_numbers_of_a_full_recording(keep, heads):
    model, source, target = filled(Translator()), sequence(5), sequence(4, seed=1)
    names = ("encoder.*", "decoder.*.self")  # of four heads, on two of the keys
    with ts.watch(model, keep=keep, layers=names) as whole:
        model(source, target)
    with ts.watch(model, keep=keep, layers=names, heads=heads) as part:
        model(source, target)
    for name in part:
        assert part[name].call.heads == tuple(heads)
        for number in heads:
            assert_same_survey(part[name].head(number), whole[name].head(number))
        if keep == "steps":
            assert_close(part[name].trace().context, whole[name].trace().context[:, heads], **CLOSE)


# ----------------------------------------------------------------------------------------------------- piece by piece


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
def test_decoding_has_the_numbers_of_one_run_over_the_whole_text(keep, pieces):
    model, source, target = filled(Translator()), sequence(5), sequence(6, seed=1)
    with ts.watch(model, keep=keep) as whole:
        expected = model(source, target)
    with ts.watch(model, keep=keep) as recording:
        assert_close(model.decode(source, target, pieces), expected, **CLOSE)
    for name, watched in recording.items():
        if name.endswith("cross") and any(n > 1 for n in pieces[1:]):
            assert len(watched.calls) > 1  # several queries to the same keys may be another sequence
            continue
        assert_same_survey(watched.survey(), whole[name].survey())
        if keep == "steps":
            got, truth = watched.trace(), whole[name].trace()
            for step in ("queries", "keys", "values", "masked", "weights", "context"):
                assert_close(getattr(got, step), getattr(truth, step), **CLOSE)
            assert_close(watched.before, whole[name].before, **CLOSE)
            assert_close(watched.after, whole[name].after, **CLOSE)
        if keep == "queries-keys":
            assert_close(watched.survey().map(2, 2), whole[name].survey().map(2, 2), **CLOSE)


@pytest.mark.parametrize("keep", KEEPS)
def test_decoding_a_padded_batch(keep):
    """Padding on the left: the mask of the keys grows at every step, and is a new tensor each time."""
    model, source, target = filled(Translator()), sequence(5), sequence(6, seed=1)
    real = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    of_source = ts.padding([5, 3])
    with ts.watch(model, keep=keep) as whole:
        model(source, target, of_source, ts.padding(keep=real))
    given = real.clone()
    with ts.watch(model, keep=keep) as recording:
        model.decode(source, target, [3, 1, 1, 1], of_source, given)
    given.fill_(False)
    for name, watched in recording.items():
        assert_same_survey(watched.survey(), whole[name].survey())


def pieces(*cuts, keys=None):
    """Return calls of an Attend: (first query, end of the queries, keys, definition), on the same queries and keys."""
    q, k, v = tensors(Shape(queries=7, keys=7), 0)
    k = k if keys is None else keys(k)
    return [(q[:, :, start:stop], k[:, :, :n], v[:, :, :n], attention) for start, stop, n, attention in cuts]


def with_mask(mask):
    return ts.Attention(mask=mask)


ids = torch.tensor([[0, 0, 0, 0, 0, 0, 1]])
APART = {
    # an old query would see a new key
    "wider than causal": pieces((2, 3, 3, with_mask(ts.window(3))), (3, 4, 4, with_mask(ts.window(3)))),
    "everyone": pieces((0, 3, 3, ts.Attention()), (3, 4, 4, ts.Attention())),
    # the definition is another one
    "another scale": pieces((0, 3, 3, causal), (3, 4, 4, replace(causal, scale=2.0))),
    "another padding": pieces((0, 1, 7, with_mask(ts.padding([7, 4]))), (1, 2, 7, with_mask(ts.padding([7, 3])))),
    # it depends on where the query stands, or on its row
    "alibi": pieces((0, 1, 7, ts.Attention(bias=ts.alibi(2))), (1, 2, 7, ts.Attention(bias=ts.alibi(2)))),
    "causal": pieces((0, 1, 7, causal), (1, 2, 7, causal)),
    "texts": pieces(
        (0, 3, 3, with_mask(ts.causal & ts.documents(ids[:, :3], queries=ids[:, :3]))),
        (3, 5, 5, with_mask(ts.causal & ts.documents(ids[:, :5], queries=ids[:, 5:]))),
    ),
    "tensor": pieces((0, 1, 3, with_mask(ts.from_tensor(torch.eye(1, 3) > 0))), (1, 2, 4, causal)),
    # other numbers of queries and keys
    "again": pieces((0, 3, 3, causal), (0, 3, 3, causal)),
    "back and on": pieces((0, 3, 3, causal), (3, 4, 4, causal), (3, 4, 4, causal)),
    "a gap": pieces((0, 3, 3, causal), (4, 5, 5, causal)),
    "several to the same": pieces((0, 2, 7, ts.Attention()), (2, 4, 7, ts.Attention())),
    "another batch": [
        *pieces((0, 3, 3, causal)),
        *(tuple(t[:1] for t in c[:3]) + c[3:] for c in pieces((3, 4, 4, causal))),
    ],
    "another precision": [
        *pieces((0, 3, 3, causal)),
        *(tuple(t.float() for t in c[:3]) + c[3:] for c in pieces((3, 4, 4, causal))),
    ],
    "other keys": [*pieces((0, 3, 3, causal)), *pieces((3, 4, 4, causal), keys=lambda k: k.flip(0))],
    "one other key": [*pieces((0, 3, 3, causal)), *pieces((3, 4, 4, causal), keys=lambda k: k + (k == k[1, 1, 2, 3]))],
    "other values": [  # the Synthesizer has the same keys for every text
        *pieces((0, 3, 3, causal)),
        *((q, k, v.flip(0), attention) for q, k, v, attention in pieces((3, 4, 4, causal))),
    ],
    "other keys of the same number": [
        *pieces((0, 3, 7, ts.Attention())),
        *pieces((3, 4, 7, ts.Attention()), keys=lambda k: k.flip(0)),
    ],
}


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", APART)
def test_calls_that_do_not_continue_are_recorded_apart(name, keep):
    attend = Attend()
    with ts.watch(attend, keep=keep) as recording:
        for call in APART[name]:
            attend(*call)
    calls = recording["attention"].calls
    assert len(calls) == len(APART[name]) - (name == "back and on")
    for call, (queries, keys, _, attention) in zip(calls[::-1], APART[name][::-1], strict=False):
        if call.size[0] == queries.shape[2]:  # not one that went on before
            assert_same_survey(call.survey(), ts.survey(queries, keys, attention))


@pytest.mark.parametrize("keep", KEEPS)
def test_the_same_sentence_again_is_another_call(keep):
    """Two generations from the same source: the cross-attention of the second differs from the first by its own
    queries."""
    model, source, target = filled(Translator()), sequence(5), sequence(4, seed=1)
    with ts.watch(model, keep=keep) as recording:
        model.decode(source, target, [2, 1, 1])
        model.decode(source, target, [1, 1, 1, 1])
    for watched in recording.values():
        first, second = watched.calls
        assert first.size == second.size
        assert_same_survey(first.survey(), second.survey())


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@pytest.mark.parametrize("keep", KEEPS)
def test_a_recurrent_decoder_attends_word_by_word(score, keep):
    layer, states, memory = filled(LuongAttention(score, D)), sequence(4), sequence(7, seed=1)
    with ts.watch(layer, keep=keep) as whole:
        layer(states, memory, ts.padding([7, 4]))
    with ts.watch(layer, keep=keep) as recording:
        for state in states.split(1, dim=1):
            layer(state, memory, ts.padding([7, 4]))
    assert_same_survey(recording["attention"].survey(), whole["attention"].survey())


@composite
def cut(draw):
    """Draw an attention, the rows at which it is cut into calls, and the tensors that are overwritten after some of
    them."""
    shape = replace(draw(shapes()), queries=7, keys=draw(st.sampled_from([7, 7, 9])))
    attention = draw(definitions(shape))
    if draw(st.integers(0, 3)):
        attention = replace(attention, mask=ts.causal & draw(st.one_of(position_masks(), st.just(ts.everyone))))
    if draw(st.integers(0, 3)) == 0:
        attention = replace(attention, mask=ts.prefix(5), bias=None)
    stops = [*sorted(draw(st.sets(st.integers(1, 6), min_size=2))), 7]
    written = {stop: draw(st.sampled_from(["keys", "values", *["nothing"] * 6])) for stop in stops}
    return shape, attention, written, draw(st.booleans()), draw(seeds)


@given(cut())
def test_calls_in_any_pieces_are_recorded_right(drawn):
    """With growing keys or the same keys, some of them changed in between: every recorded row is what ran."""
    shape, attention, written, growing, seed = drawn
    q, keys, values = tensors(shape, seed)
    attend, contexts, start = Attend(), [torch.empty_like(values[:, :1, :0].expand(-1, shape.heads, -1, -1))], 0
    with ts.watch(attend, keep="steps") as recording:
        for stop, what in written.items():
            seen = slice(0, shape.keys - shape.queries + stop if growing else shape.keys)
            try:
                contexts.append(attend(q[:, :, start:stop], keys[:, :, seen], values[:, :, seen], attention))
            except ValueError:  # the definition is one of all the queries or keys at once
                continue
            start = stop
            if what != "nothing":
                (keys if what == "keys" else values)[:, :, 0] += 1.0
    keys.zero_()
    values.zero_()
    recorded = [call.trace().context for call in recording["attention"].calls]
    assert_close(torch.cat([contexts[0], *recorded], -2), torch.cat(contexts, -2), **CLOSE)
