"""`plan`: say which engine runs an attention, which one surveys it, and why."""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention
from ..engines import Plan, plan_attend, torch_modes
from .dispatch import ENGINES, FEW, choose, has_few_scores

# Of a survey, measured by `python -m benchmarks survey`; `telescope doctor` measures this machine.
COST = {
    "triton": "the GPU's kernels read each tile of scores once, about 0.7 to 1.5 times a forward "
    "pass of a long text",
    "fused": "compiled loops read each strip of scores in the CPU's cache, about 0.7 to 1.3 times "
    "a forward pass",
    "chunked": "PyTorch computes it block by block, about 3 to 8 times a forward pass",
    "reference": "it forms every weight",
}


def plan(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention = Attention(),
    *,
    dropout: float = 0.0,
    engine: str | None = None,
) -> Plan:
    """Return the engine that `attend` takes for these arguments, and why, without running it; the
    survey's likewise.

    Args:
        queries: (batch, heads, query, d_q).
        keys: (batch, key_heads, key, d_k).
        values: (batch, key_heads, key, d_v).
        attention: The definition.
        dropout: As for `attend`.
        engine: As for `attend`.

    Returns:
        A Plan with `.engine` and `.why`; print it. Its `.survey` is the plan for
        `ts.survey(queries, keys, attention)`: which engine, what it costs beside a forward pass,
        and what keeps faster engines from running.

    Raises:
        TypeError, ValueError: As for `attend`.

    Example:
        >>> import telescope as ts, torch
        >>> x = torch.ones(1, 2, 3, 4)
        >>> print(ts.plan(x, x, x, ts.Attention(mask=ts.causal)))
        sdpa: torch's fused attention computes softmax(mask(q·k / √4)) v without forming the 3 x 3 weights
        >>> print(ts.plan(x, x, x).survey)
        chunked: PyTorch computes it block by block...
    """
    attended = plan_attend(queries, keys, values, attention, dropout, engine)
    queries, keys = torch_modes.cast_for_autocast(queries, keys)
    return replace(attended, survey=plan_survey(queries, keys, attention))


def plan_survey(queries: Tensor, keys: Tensor, attention: Attention, top: int = 8) -> Plan:
    """Return the engine that `survey` takes for these arguments, and why, without running it."""
    chosen = choose(queries, keys, attention, top, None)
    obstacles = []
    for name in ENGINES:
        if name == chosen:
            break
        obstacle = ENGINES[name].cannot(queries, keys, attention, top)
        if obstacle is None and has_few_scores(queries, keys):
            obstacle = (
                f"it begins at {FEW:,} scores, since loading its compiler would take "
                "longer "
                "than fewer scores do"
            )
        obstacles.append(f"{name} cannot: {obstacle}")
    return Plan(
        chosen, COST[chosen] + (f", because {' and '.join(obstacles)}" if obstacles else "")
    )
