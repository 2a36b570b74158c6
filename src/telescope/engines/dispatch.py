"""Choose an engine: `attend` runs an attention on the fastest that can, `plan_attend` says which
one and why. Arguments that do not fit together raise one sentence that names the fix.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..attention import (
    Attention,
    Bias,
    Causal,
    Context,
    Everyone,
    Keys,
    Mask,
    Prefix,
    Queries,
    Score,
    Values,
    Window,
    everyone,
    require_dense,
    require_real,
)
from ..guesses import of_definition
from ..words import hint, suggests
from . import chunked, flex, reference, sdpa, torch_modes
from .exact import may_be_nonfinite, sums_are_nonfinite

ENGINES: dict[str, ModuleType] = {
    "sdpa": sdpa,
    "flex": flex,
    "chunked": chunked,
    "reference": reference,
}  # fastest first

# Up to so many scores, one block of `chunked`, keeping every step for the gradient (`reference`)
# beats computing the steps again (`chunked`). Two Neoverse cores, 8 heads, forward and backward: 70
# ms against 107 ms with 512 tokens, half as many scores as this, and 1,037 ms against 982 ms with
# 2,048 tokens, causal.
SMALL = 2**22


@dataclass(frozen=True)
class Plan:
    """Name the engine that runs an attention or its survey, and say why in one sentence. Returned
    by `plan`.

    Args:
        engine: "sdpa", "flex", "chunked" or "reference"; for a survey "triton", "fused", "chunked"
            or "reference".
        why: What the engine computes, and why faster engines cannot.
        survey: The plan for the survey of the same attention; None in a survey's own plan.

    Example:
        >>> import telescope as ts, torch
        >>> x = torch.ones(1, 2, 3, 4)
        >>> ts.plan(x, x, x).engine, ts.plan(x, x, x).survey.engine
        ('sdpa', 'chunked')
    """

    engine: str
    why: str
    survey: "Plan | None" = None

    def __str__(self) -> str:
        return f"{self.engine}: {self.why}"


@suggests(
    "attend",
    "the definition is one argument: ts.attend(q, k, v, ts.Attention(mask=..., scale=...))",
    **of_definition("ts.attend(q, k, v"),
    **dict.fromkeys(
        ("need_weights", "return_weights", "output_attentions"),
        "ts.trace(q, k, v, attention).weights, or ts.survey(q, k, attention)",
    ),
    enable_gqa="nothing: fewer key heads are shared by themselves",
    dropout_p="dropout=",
)
def attend(
    queries: Queries,
    keys: Keys,
    values: Values,
    attention: Attention = Attention(),
    *,
    dropout: float = 0.0,
    engine: str | None = None,
) -> Context:
    """Return the context of every query, normalise(mask(softcap(score · scale) + bias)) v, on the
    fastest engine.

    Args:
        queries: (batch, heads, query, d_q).
        keys: (batch, key_heads, key, d_k). With fewer key heads than heads, neighbouring query
            heads share a key head.
        values: (batch, key_heads, key, d_v).
        attention: The definition.
        dropout: The probability with which a weight is set to zero, for training.
        engine: The engine to use, "sdpa", "flex", "chunked" or "reference"; None takes the fastest
            that can run.

    Returns:
        (batch, heads, query, d_v), in the dtype of `queries`, or of autocast where that is on. A
        query that may see
        nothing gets zeros.

    Raises:
        TypeError, ValueError: The arguments do not fit together, or `engine` cannot run this
            definition.

    Example:
        >>> import telescope as ts, torch
        >>> queries = keys = torch.zeros(1, 1, 2, 4)
        >>> values = torch.tensor([[[[1.0], [3.0]]]])
        >>> ts.attend(
        ...     queries, keys, values, ts.Attention(mask=ts.causal)
        ... ).flatten().tolist()
        [1.0, 2.0]
    """
    check_dropout(dropout)
    if engine is None and sdpa.is_one_plain_call(queries, keys, values, attention):
        # The short path of small calls: one kernel, and a look for NaN afterwards.
        context = sdpa.attend_plain(queries, keys, values, attention, dropout)
        if not sums_are_nonfinite(*_suspects(queries, keys, context, attention)):
            return context
    check(queries, keys, values, attention)
    # Cast once as torch would, and switch autocast off: engines choose their dtypes themselves.
    if torch_modes.autocast_enabled(queries.device):
        queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
        with torch_modes.without_autocast(queries.device):
            return _attend(queries, keys, values, attention, dropout, engine)
    return _attend(queries, keys, values, attention, dropout, engine)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    dropout: float,
    engine: str | None,
) -> Tensor:
    """Run the chosen engine, and an exact one where the chosen one may have mishandled a NaN."""
    if queries.shape[-2] == 1:  # a single query, as in decoding with a cache, is the last one
        attention = attention.for_last_query()
    chosen, _ = _choose(queries, keys, values, attention, dropout, engine)
    context: Tensor = ENGINES[chosen].attend(queries, keys, values, attention, dropout)
    # Fused kernels let a NaN through a mask, or lose one; the exact engines do neither.
    if chosen in ("sdpa", "flex") and _may_mishandle_nan(queries, keys, context, attention):
        context = ENGINES[_choose_exact(queries, keys)].attend(
            queries, keys, values, attention, dropout
        )
    return context


def plan_attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    dropout: float,
    engine: str | None,
) -> Plan:
    """Return the engine that `attend` takes for these arguments, and why, without running it."""
    check(queries, keys, values, attention)
    queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
    # As `_attend` does, so that the plan names what would run.
    effective = attention.for_last_query() if queries.shape[-2] == 1 else attention
    chosen, obstacles = _choose(queries, keys, values, effective, dropout, engine)
    formula = attention.formula(keys.shape[-1])
    weights = f"{queries.shape[-2]} x {keys.shape[-2]}"
    # Without obstacles the engine was named by the caller.
    why = f"because {' and '.join(obstacles)}" if obstacles else "as requested"
    if chosen == "sdpa":
        groups = sdpa.without_hidden_keys(queries, keys, effective)
        calls = sum(len(group.calls) for group in groups or ())
        split = f", in {calls} calls over the keys that are not hidden" if calls else ""
        return Plan(
            chosen,
            f"torch's fused attention computes {formula} without forming the {weights} "
            f"weights{split}",
        )
    if chosen == "flex":
        return Plan(
            chosen,
            f"FlexAttention compiles {formula} into one kernel that forms no {weights} weights, "
            f"{why}",
        )
    if chosen == "chunked":
        return Plan(
            chosen,
            f"it computes {formula} a block of queries at a time, not {weights} numbers at once, "
            f"{why}",
        )
    return Plan(chosen, f"it forms every step of {formula}, {weights} numbers each, {why}")


def _choose(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    dropout: float,
    engine: str | None,
) -> tuple[str, list[str]]:
    """Return the engine that runs the call, and for each faster engine why it does not."""
    call = (queries, keys, values, attention, dropout)
    if engine is not None:
        if engine not in ENGINES:
            raise ValueError(f'there is no engine "{engine}"; {hint(engine, ENGINES)}')
        # An engine that was asked for runs or says why not; there is no silent substitute.
        obstacle = ENGINES[engine].cannot(*call)
        if obstacle:
            fix = f'leave engine out, or use "{_choose_exact(queries, keys)}"'
            raise ValueError(
                f'engine="{engine}" cannot run {attention.formula(keys.shape[-1])}: {obstacle}; '
                f"{fix}"
            )
        return engine, []
    obstacle = sdpa.cannot(*call)
    if obstacle is None:
        return "sdpa", []
    obstacles = [f"sdpa cannot: {obstacle}"]
    last = _choose_exact(queries, keys)
    # Small calls go to the reference at once: compiling for them does not pay.
    if last == "chunked":
        obstacle = flex.cannot(*call)
        # On a CPU flex compiles for half a minute: it runs only if the caller names it.
        if obstacle is None and queries.device.type != "cpu":
            return "flex", obstacles
        slow_start = 'flex, which compiles for half a minute on a CPU, waits for engine="flex"'
        obstacles.append(f"flex cannot: {obstacle}" if obstacle else slow_start)
    return last, obstacles


def _choose_exact(queries: Tensor, keys: Tensor) -> str:
    """Return the faster of the two engines that run everything. Symbolic sizes cannot be cut into
    blocks.
    """
    if torch_modes.sizes_are_open(queries, keys):
        return "reference"
    batch, heads, rows, _ = queries.shape
    return "reference" if batch * heads * rows * keys.shape[-2] <= SMALL else "chunked"


def _may_mishandle_nan(
    queries: Tensor, keys: Tensor, context: Tensor, attention: Attention
) -> bool:
    """Return whether a fused kernel may have mishandled a NaN, so that the call must be computed
    again.

    A NaN can pass through the mask, since a hidden key's weight is zero and 0 · NaN = NaN. Or it
    can vanish: a row of nothing but NaN has no largest score, and some kernels take such a row for
    an empty one.

    On a CPU this test is cheap next to the attention, except for one query with many keys, where
    reading the keys is most of the work; then the keys are not tested. On a GPU the test would make
    every call wait and is left out.
    """
    if context.device.type != "cpu":
        return False
    return may_be_nonfinite(*_suspects(queries, keys, context, attention))


def _suspects(queries: Tensor, keys: Tensor, context: Tensor, attention: Attention) -> list[Tensor]:
    """Return the tensors in which a NaN may show that a fused kernel has mishandled it."""
    suspects = [queries]
    # One query with many keys: reading all keys would cost as much as the attention.
    if keys is not queries and not queries.shape[-2] == 1 < keys.shape[-2]:
        suspects.append(keys)
    # Only where something is hidden can a NaN get through to other rows.
    if attention.bias is not None or attention.mask != everyone:
        suspects.append(context)
    return suspects


AXES = "(batch, heads, position, feature)"


def check(queries: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> None:
    """Raise a TypeError or ValueError that names the argument, what came, what fits and the fix."""
    if not isinstance(attention, Attention):
        raise TypeError(_wrong_definition(attention))
    _check_tensors({"queries": queries, "keys": keys, "values": values}, attention)


def check_without_values(queries: Tensor, keys: Tensor, attention: Attention) -> None:
    """Raise as `check` does, for `survey`, which reads no values: survey(queries, keys,
    attention).
    """
    if isinstance(attention, Tensor) and attention.dtype != torch.bool:
        raise TypeError(
            f"attention is a tensor of shape {_shape(attention)}; survey takes queries, keys and a "
            "ts.Attention, and values by name: values=values"
        )
    if not isinstance(attention, Attention):
        raise TypeError(_wrong_definition(attention))
    _check_tensors({"queries": queries, "keys": keys}, attention)


def check_dropout(dropout: float) -> float:
    """Return `dropout`; raise a TypeError or ValueError unless it is a number from 0 to 1."""
    if not 0.0 <= require_real("dropout", dropout) <= 1.0:
        raise ValueError(f"dropout={dropout} is a probability, from 0 to 1")
    return dropout


def _wrong_definition(given: Any) -> str:
    """Return the error for an argument `attention` that is no Attention, with the call that was
    probably intended.
    """
    kind = type(given).__name__
    if isinstance(given, Mask):
        # Only these masks are printed as they are written.
        mask = f"ts.{given!r}" if isinstance(given, Causal | Everyone | Prefix | Window) else "..."
        return f"attention is a mask, {kind}, not a ts.Attention; write ts.Attention(mask={mask})"
    if isinstance(given, Bias):
        return f"attention is a bias, {kind}, not a ts.Attention; write ts.Attention(bias=...)"
    if isinstance(given, Score):
        return f"attention is a score, {kind}, not a ts.Attention; write ts.Attention(score=...)"
    if isinstance(given, Tensor) and given.dtype == torch.bool:
        return (
            f"attention is a bool tensor of shape {_shape(given)}, not a ts.Attention; write "
            "ts.Attention(mask=ts.from_tensor(seen)) for True = may attend, or "
            "ts.Attention(mask=ts.from_forbidden(hidden)) for True = forbidden"
        )
    if isinstance(given, Tensor) and given.is_floating_point():
        return (
            f"attention is a float tensor of shape {_shape(given)}, not a ts.Attention; a mask "
            "that is added to the scores goes in as ts.Attention(bias=ts.from_additive(tensor))"
        )
    return f"attention is a ts.Attention, not {kind}; the plain one is ts.Attention()"


def _check_tensors(inputs: dict[str, Tensor], attention: Attention) -> None:
    """Raise where the tensors, by argument name, do not fit each other or the definition."""
    queries = inputs["queries"]
    keys = inputs["keys"]
    values = inputs.get("values", keys)
    # One cheap test passes nearly every call; the detailed ones write the sentences.
    if not _inputs_match(queries, keys, values):
        for name, tensor in inputs.items():
            _check_tensor(name, tensor)
        for name, tensor in inputs.items():
            _check_match(name, tensor, queries)
    batch, heads, rows, d_q = queries.shape
    key_heads, columns, d_k = keys.shape[1:]
    # Heads and positions swapped is the commonest mistake: name the fix.
    if values.shape[1:3] != keys.shape[1:3]:
        swapped = (values.shape[2], values.shape[1]) == (key_heads, columns)
        fix = "; heads come before positions: values.transpose(1, 2)" if swapped else ""
        raise ValueError(
            f"values {_shape(values)} must have as many heads and positions as keys "
            f"{_shape(keys)}{fix}"
        )
    # Grouped heads need groups of one size.
    if key_heads != heads and (key_heads == 0 or heads % key_heads):
        swapped = columns > 0 and rows % columns == 0
        fix = (
            f"; attention takes {AXES}: if heads come after positions, write .transpose(1, 2)"
            if swapped
            else ""
        )
        raise ValueError(
            f"{heads} query heads cannot share {key_heads} key heads evenly; their number must "
            f"divide {heads}{fix}"
        )
    attention.check(batch=batch, heads=heads, queries=rows, keys=columns, d_q=d_q, d_k=d_k)


def _inputs_match(queries: Any, keys: Any, values: Any) -> bool:
    """Return whether the tensors are dense and agree in rank, dtype, device and batch: one test
    before the detailed.
    """
    return (
        isinstance(queries, Tensor)
        and isinstance(keys, Tensor)
        and isinstance(values, Tensor)
        and queries.layout is keys.layout is values.layout is torch.strided
        and not (queries.is_nested or keys.is_nested or values.is_nested)
        and queries.ndim == keys.ndim == values.ndim == 4
        and queries.dtype == keys.dtype == values.dtype
        and queries.is_floating_point()
        and queries.device == keys.device == values.device
        and queries.shape[0] == keys.shape[0] == values.shape[0]
    )


def _check_tensor(name: str, tensor: Any) -> None:
    """Raise unless `tensor` is a floating-point tensor with the four axes of attention."""
    if not isinstance(tensor, Tensor):
        kind = type(tensor)
        # The call that makes a tensor of what came.
        maker = {"ndarray": "torch.from_numpy", "list": "torch.tensor"}.get(kind.__name__)
        fix = f", e.g. {maker}({name})" if maker else ""
        raise TypeError(
            f"{name} is a {kind.__name__}; attention takes tensors of shape {AXES}{fix}"
        )
    require_dense(name, tensor)
    if tensor.ndim != 4:
        fix = {
            2: f"; for one sequence and one head write {name}[None, None]",
            3: f"; add the missing axis, {name}.unsqueeze(1) for one head or {name}.unsqueeze(0) "
            "for a batch of one",
        }.get(tensor.ndim, "")
        raise ValueError(f"{name} has shape {_shape(tensor)}; attention takes {AXES}{fix}")
    if not tensor.is_floating_point():
        raise TypeError(
            f"{name} is {tensor.dtype}; attention takes floating point, e.g. {name}.float()"
        )


def _check_match(name: str, tensor: Tensor, queries: Tensor) -> None:
    """Raise unless `tensor` has the device, the dtype and the batch size of `queries`."""
    if tensor.device != queries.device:
        raise ValueError(
            f"{name} is on {tensor.device}, queries on {queries.device}; move one of them"
        )
    if tensor.dtype != queries.dtype and not _castable(tensor, queries):
        raise ValueError(f"{name} is {tensor.dtype}, queries {queries.dtype}; convert one of them")
    if tensor.shape[0] != queries.shape[0]:
        raise ValueError(
            f"{name} {_shape(tensor)} has a batch of {tensor.shape[0]}, queries {_shape(queries)} "
            f"of {queries.shape[0]}"
        )


def _castable(*tensors: Tensor) -> bool:
    """Return whether autocast casts these tensors to one dtype; autocast leaves float64 alone."""
    return torch_modes.autocast_enabled(tensors[0].device) and all(
        tensor.dtype != torch.float64 for tensor in tensors
    )


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
