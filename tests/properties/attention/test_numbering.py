"""An attention restricted to some heads, queries, sequences or later keys, or to the written part of a cache, computes
what the whole computes there; also where one restriction follows another."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import telescope as ts
from support.strategies import Shape, assert_near, composite, definitions, normal, seeds, shapes, tensors
from telescope.attention import (
    Alibi,
    Spans,
    WrittenMask,
    drop_first_keys,
    key_heads_of,
    map_tensors,
    restrict_to_heads,
    restrict_to_queries,
    restrict_to_sequences,
    restrict_to_written_keys,
)
from telescope.engines.dispatch import ENGINES
from telescope.engines.exact import repeat_key_heads
from telescope.files.definitions import from_json, to_json
from telescope.models import GPT, GPTConfig

# ------------------------------------------------------------------- custom masks and biases that depend on every index


def fits_alone(of, size):
    if tuple(size.values()) != of:
        raise ValueError(f"made for {of}, asked of {size}")


@dataclass(frozen=True, eq=False)
class Stretch(ts.Mask):
    """A mask that shows an interval of the keys, another one for each sequence, head, row and position; of one fixed
    size."""

    of: tuple[int, int, int, int]

    def sees(self, at):
        return (at.key >= self._start(at)) & (at.key < self._start(at) + self.of[-1] // 2 + 1)

    def spans(self, at, keys):
        return Spans.between(self._start(at), self._start(at) + self.of[-1] // 2 + 1, keys)

    def check(self, **size):
        fits_alone(self.of, size)

    def _start(self, at):
        return (at.batch + 2 * at.head + 3 * at.row + 5 * at.query) % self.of[-1]


@dataclass(frozen=True, eq=False)
class Waves(ts.Bias):
    """A bias that differs for each sequence, head, row, position and key; of one fixed size."""

    of: tuple[int, int, int, int]

    def __call__(self, at):
        return torch.cos((at.batch + 2 * at.head + 3 * at.row + 5 * at.query + 7 * at.key).double())

    def check(self, **size):
        fits_alone(self.of, size)


# ------------------------------------------------------------------------------------------------ parts of an attention


@dataclass
class Part:
    """A restricted attention with its inputs, and the indices of its parts in the whole."""

    attention: ts.Attention
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    numbers: list[torch.Tensor]

    @property
    def sizes(self):
        return tuple(map(len, self.numbers))

    def take(self, axis, which, attention):
        self.numbers[axis] = self.numbers[axis][which]
        self.attention = attention


def some(draw, count):
    return torch.tensor(draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True)))


def take_heads(part, draw):
    which = some(draw, part.sizes[1])
    serving = key_heads_of(which, part.sizes[1], part.keys.shape[1])
    part.take(1, which, restrict_to_heads(part.attention, which, part.sizes[1]))
    part.queries, part.keys, part.values = part.queries[:, which], part.keys[:, serving], part.values[:, serving]


def take_queries(part, draw):
    which = some(draw, part.sizes[2])
    part.take(2, which, restrict_to_queries(part.attention, which, part.sizes[2:]))
    part.queries = part.queries[:, :, which]


def take_sequences(part, draw):
    which = some(draw, part.sizes[0])
    part.take(0, which, restrict_to_sequences(part.attention, which, part.sizes[0]))
    part.queries, part.keys, part.values = part.queries[which], part.keys[which], part.values[which]


TAKE = {"heads": take_heads, "queries": take_queries, "sequences": take_sequences}


@composite
def parts(draw):
    """Draw an attention restricted in up to three steps, and what the whole computes by the formula."""
    shape, seed = draw(shapes()), draw(seeds)
    attention = draw(definitions(shape))
    own = Stretch(shape.whole)
    masks = attention.mask, attention.mask & own, attention.mask | ~own
    bias = draw(st.sampled_from([attention.bias, attention.bias, Waves(shape.whole)]))
    attention = replace(attention, mask=draw(st.sampled_from(masks)), bias=bias)

    steps = draw(st.lists(st.sampled_from([*TAKE, "later"]), min_size=1, max_size=3))
    length = shape.keys
    if draw(st.booleans()):  # queries are counted in a room of its own, so they are taken from what is written
        steps.insert(draw(st.integers(0, [*steps, "queries"].index("queries"))), "written")
        length = draw(st.integers(min(shape.queries, shape.keys), shape.keys))
    gone = [draw(st.integers(0, (shape.keys - 1) // 3)) for step in steps if step == "later"]
    attention = attention.with_extra_mask(~ts.prefix(sum(gone)))  # no query sees the keys that will be dropped

    q, k, v = tensors(shape, seed)
    part = Part(attention, q, k, v, [torch.arange(size) for size in shape.whole])
    for step in steps:
        if step == "written":
            here = torch.tensor(length - (shape.keys - part.sizes[3]))
            part.attention = restrict_to_written_keys(part.attention, part.sizes[3], here)
        elif step == "later":
            first, *gone = gone
            part.take(3, slice(first, None), drop_first_keys(part.attention, first))
            part.keys, part.values = part.keys[:, :, first:], part.values[:, :, first:]
        else:
            TAKE[step](part, draw)
    return part, whole(q, k, v, attention, shape, length)


def whole(q, k, v, attention, shape: Shape, length):
    """Return the weights and the context of every query; the last query is at key `length` - 1, the last of all."""
    at = ts.Pairs.block(range(shape.queries), range(shape.keys), of=shape.whole[2:], batch=len(q), heads=q.shape[1])
    at = replace(at, query=at.row + (length - shape.queries))
    masked = attention.masked_scores(q, k, at).masked_fill(at.key >= length, -torch.inf)
    weights = attention.weights(masked)
    return weights, weights @ repeat_key_heads(v, q)


def of_numbers(tensor, *numbers):
    for axis, which in enumerate(numbers):
        tensor = tensor.index_select(axis, which)
    return tensor


@settings(max_examples=300)
@given(parts())
def test_a_part_computes_what_the_whole_computes_there(drawn):
    part, (weights, context) = drawn
    inputs = part.queries, part.keys, part.values
    assert_near(ts.trace(*inputs, part.attention).weights, of_numbers(weights, *part.numbers))
    for name, engine in ENGINES.items():
        if engine.cannot(*inputs, part.attention) is None and name != "flex":
            assert_near(ts.attend(*inputs, part.attention, engine=name), of_numbers(context, *part.numbers[:3]))


@settings(max_examples=100)
@given(parts())
def test_the_properties_of_a_restricted_mask_are_true(drawn):
    """Its spans, whether it is the same for all queries, and its form for the last query."""
    part, _ = drawn
    (batch, heads, queries, keys), mask = part.sizes, part.attention.mask
    at = ts.Pairs.block(range(queries), range(keys), of=(queries, keys), batch=batch, heads=heads)
    seen, spans = mask.sees(at).expand(part.sizes), mask.spans(at, keys)
    inside = ((at.key >= spans.start) & (at.key < spans.stop)).expand_as(seen)
    assert not (seen & ~inside).any()
    assert not spans.whole or torch.equal(seen, inside)
    assert not mask.same_for_all_queries or torch.equal(seen, seen[:, :, :1].expand_as(seen))
    last = replace(at, row=at.row[:, :, -1:], query=at.query[:, :, -1:])
    assert torch.equal(mask.for_last_query().sees(last).expand(batch, heads, 1, keys), seen[:, :, -1:])


# ------------------------------------------------------------------------------------------------- what stays as it is

SOME = torch.tensor([2, 0])
POSITIONS = ts.causal & ts.window(3) | ~ts.causal
PARTS = {
    "heads": lambda attention: restrict_to_heads(attention, SOME, 3),
    "queries": lambda attention: restrict_to_queries(attention, SOME, (3, 5)),
    "sequences": lambda attention: restrict_to_sequences(attention, SOME, 3),
    "later": lambda attention: drop_first_keys(attention, 2),
    "written": lambda attention: restrict_to_written_keys(attention, 5, torch.tensor(4)),
}
UNCHANGED = {
    "heads": ts.Attention(mask=POSITIONS & ts.prefix(2) & ts.padding([4, 1, 2]) & ts.documents([0, 0, 1])),
    "queries": ts.Attention(mask=ts.prefix(2) & ~ts.padding(left=[4, 1, 2]) | ts.padding(keep=torch.eye(3).bool())),
    "sequences": ts.Attention(mask=POSITIONS & ts.prefix(2), bias=ts.alibi(3)),
    "later": ts.Attention(mask=POSITIONS, bias=ts.relative(torch.randn(3, 5))),
}


@pytest.mark.parametrize("kind", UNCHANGED)
def test_definitions_that_a_restriction_does_not_change_stay_equal(kind):
    """So that an engine still recognises them."""
    assert PARTS[kind](UNCHANGED[kind]) == UNCHANGED[kind]


def test_restricted_biases_keep_their_classes():
    """The kernels of a survey recognise them by class."""
    assert restrict_to_heads(ts.Attention(bias=ts.alibi(3)), SOME, 3).bias == Alibi(ts.alibi(3).slopes[SOME])
    table = torch.randn(3, 5)
    assert restrict_to_heads(ts.Attention(bias=ts.relative(table)), SOME, 3).bias == ts.relative(table[SOME])
    assert restrict_to_heads(ts.Attention(bias=ts.relative(table[:1])), SOME, 3).bias == ts.relative(table[:1])


@pytest.mark.parametrize("kind", PARTS)
def test_a_mask_that_is_the_same_for_all_queries_stays_so(kind):
    """So that a fused kernel takes it."""
    row = ts.from_tensor(torch.ones(3, 3, 1, 5).bool())
    assert PARTS[kind](ts.Attention(mask=row)).mask.same_for_all_queries
    assert not PARTS[kind](ts.Attention(mask=row & ts.causal)).mask.same_for_all_queries


@pytest.mark.parametrize("kind", PARTS)
def test_the_repr_of_a_restricted_definition_is_that_of_the_whole(kind):
    table = ts.from_tensor(torch.ones(3, 3, 3, 5).bool())
    part = PARTS[kind](ts.Attention(mask=ts.causal & table, bias=ts.from_additive(torch.zeros(3, 3, 3, 5))))
    read = "causal & from_tensor(3x3x3x5)"
    assert repr(part.mask) == (f"written({read})" if kind == "written" else read)
    assert repr(part.bias) == "from_additive(3x3x3x5)"


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_can_be_saved_and_has_tensors_of_its_own(kind):
    table = ts.from_tensor(normal(3, 3, 3, 5, seed=1) < 0.5)
    part = PARTS[kind](ts.Attention(mask=ts.causal & table, bias=ts.from_additive(normal(3, 3, 3, 5, seed=2))))
    beside = {}
    assert from_json(to_json(part, beside), beside, "here") == part
    assert map_tensors(part, torch.clone) == part
    assert part.to("meta").mask != part.mask


# --------------------------------------------------------------------------------------------- a cache of fixed size


def test_the_written_length_is_not_read_from_the_device():
    """On the meta device there is no number to read."""
    mask = ts.causal & ts.window(3) & ts.padding(left=[0, 2]) | ~ts.prefix(2)
    whole = restrict_to_written_keys(ts.Attention(mask=mask, bias=ts.alibi(4)), 8, torch.tensor(5)).to("meta")
    at = ts.Pairs.block(range(2), range(8), of=(2, 8), batch=2, heads=4, device=torch.device("meta"))
    for attention in (whole, whole.for_last_query()):
        assert attention.mask.sees(at).shape == (2, 1, 2, 8)
        assert attention.bias(at).shape == (1, 4, 2, 8)
        assert not attention.mask.spans(at, 8).whole


def test_the_last_query_sees_all_written_keys():
    last = restrict_to_written_keys(ts.Attention(mask=ts.causal), 5, torch.tensor(4)).for_last_query().mask
    assert last.same_for_all_queries
    assert last.block(1, 5).tolist() == [[[[True, True, True, True, False]]]]


@torch.no_grad()
def test_a_step_computes_its_mask_once_for_all_layers(monkeypatch):
    model = GPT(GPTConfig(vocabulary=11, max_positions=8, d_model=8, blocks=3, heads=2)).eval()
    cache = model.cache(batch=2, room=8).fixed()
    computed, sees = [], WrittenMask.sees
    monkeypatch.setattr(WrittenMask, "sees", lambda self, at: computed.append(self) or sees(self, at))
    for _ in range(2):
        model(torch.tensor([[1], [2]]), cache=cache)
    assert len(computed) == 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", PARTS)
def test_inside_torch_compile(kind):
    torch._dynamo.reset()
    q, k, v = tensors(Shape(batch=3, heads=3, key_heads=3, queries=3, keys=5))
    attention = ts.Attention(mask=ts.causal & ~ts.from_tensor(normal(3, 3, 3, 5, seed=1) < -0.5), bias=ts.alibi(3))
    if kind == "later":
        k, v = k[:, :, 2:], v[:, :, 2:]
    else:
        axis = {"heads": 1, "queries": 2, "sequences": 0}.get(kind)
        q = q if axis is None else q.index_select(axis, SOME)
        k, v = (each.index_select(axis, SOME) if axis in (0, 1) else each for each in (k, v))
    attend = torch.compile(lambda *inputs: ts.attend(*inputs, PARTS[kind](attention)), backend="eager", fullgraph=True)
    assert_near(attend(q, k, v), ts.attend(q, k, v, PARTS[kind](attention)))
