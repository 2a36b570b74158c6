"""Choose an engine: `attend` runs an attention on the fastest that can, `plan_attend` says which
one and why.
"""

from dataclasses import dataclass
from types import ModuleType

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, everyone
from ..words import hint
from . import chunked, flex, reference, sdpa, torch_modes
from .check_inputs import check, check_dropout
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
        or "reference". why: What the engine computes, and why faster engines cannot. survey: The
        plan for the survey of the same attention; None in a survey's own plan.

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


def attend(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention = Attention(),
    *,
    dropout: float = 0.0,
    engine: str | None = None,
) -> Float[Tensor, "batch heads query d_v"]:
    """Return the context of every query, normalise(mask(softcap(score · scale) + bias)) v, on the
    fastest engine.

    Args:
        queries: (batch, heads, query, d_q). keys: (batch, key_heads, key, d_k). With fewer key
        heads than heads, neighbouring query heads share a key head. values: (batch, key_heads, key,
        d_v). attention: The definition. dropout: The probability with which a weight is set to
        zero, for training. engine: The engine to use, "sdpa", "flex", "chunked" or "reference";
        None takes the fastest that can run.

    Returns:
        (batch, heads, query, d_v), in the dtype of `queries`, or of autocast where that is on. A
        query that may see nothing gets zeros.

    Raises:
        TypeError, ValueError: The arguments do not fit together, or `engine` cannot run this
        definition.

    Example:
        >>> import telescope as ts, torch
        >>> queries = keys = torch.zeros(1, 1, 2, 4)
        >>> values = torch.tensor([[[[1.0], [3.0]]]])
        >>> ts.attend(queries, keys, values, ts.Attention(mask=ts.causal)).flatten().tolist()
        [1.0, 2.0]
    """
    check_dropout(dropout)
    if engine is None and sdpa.is_one_plain_call(queries, keys, values, attention):
        context = sdpa.attend_plain(queries, keys, values, attention, dropout)
        if not sums_are_nonfinite(*_suspects(queries, keys, context, attention)):
            return context
    check(queries, keys, values, attention)
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
    effective = attention.for_last_query() if queries.shape[-2] == 1 else attention
    chosen, obstacles = _choose(queries, keys, values, effective, dropout, engine)
    formula = attention.formula(keys.shape[-1])
    weights = f"{queries.shape[-2]} x {keys.shape[-2]}"
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
    if last == "chunked":
        obstacle = flex.cannot(*call)
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
    if keys is not queries and not queries.shape[-2] == 1 < keys.shape[-2]:
        suspects.append(keys)
    if attention.bias is not None or attention.mask != everyone:
        suspects.append(context)
    return suspects
