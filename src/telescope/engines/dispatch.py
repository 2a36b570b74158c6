"""The one door to the engines: `attend` runs an attention, `plan` says on which engine and why."""

from dataclasses import dataclass
from types import ModuleType

from jaxtyping import Float
from torch import Tensor

from ..attention import Attention, everyone
from ..words import hint
from . import chunked, flex, reference, sdpa, torch_modes
from .check_inputs import check, check_dropout
from .exact import broken

ENGINES: dict[str, ModuleType] = {
    "sdpa": sdpa,
    "flex": flex,
    "chunked": chunked,
    "reference": reference,
}  # fastest first

# Up to so many scores, one block of `chunked`, keeping every step beats computing the steps again for the gradient. Two
# Neoverse cores, 8 heads, forward and backward: 70 ms against 107 ms with 512 tokens, which is half of it, and
# 1,037 ms against 982 ms with 2,048, causal.
SMALL = 2**22


@dataclass(frozen=True)
class Plan:
    """Which engine runs an attention, and why, in one sentence."""

    engine: str
    why: str

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
    """The context of every query: normalise(mask(softcap(score · scale) + bias)) v, on the engine that fits.

    Fewer key heads than query heads are grouped queries. `dropout` is the probability with which a weight is dropped,
    for training. `engine` forces one; where it cannot run, it says why. A query that may see nothing gets zeros.
    """
    check(queries, keys, values, attention)
    check_dropout(dropout)
    if torch_modes.autocast_enabled(queries.device):
        queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
        with torch_modes.without_autocast(queries.device):
            return _attend(queries, keys, values, attention, dropout, engine)
    return _attend(queries, keys, values, attention, dropout, engine)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float, engine: str | None
) -> Tensor:
    if queries.shape[-2] == 1:  # as when decoding with a cache: there it is the last one
        attention = attention.of_last_query()
    chosen, _ = _choose(queries, keys, values, attention, dropout, engine)
    context: Tensor = ENGINES[chosen].attend(queries, keys, values, attention, dropout)
    if chosen in ("sdpa", "flex") and _mishandled(queries, keys, context, attention):
        context = ENGINES[_exact(queries, keys)].attend(queries, keys, values, attention, dropout)
    return context


def plan(
    queries: Float[Tensor, "batch heads query d_q"],
    keys: Float[Tensor, "batch key_heads key d_k"],
    values: Float[Tensor, "batch key_heads key d_v"],
    attention: Attention = Attention(),
    *,
    dropout: float = 0.0,
    engine: str | None = None,
) -> Plan:
    """Which engine `attend` takes for these, and why: print it."""
    check(queries, keys, values, attention)
    queries, keys, values = torch_modes.cast_for_autocast(queries, keys, values)
    asked = attention.of_last_query() if queries.shape[-2] == 1 else attention
    chosen, obstacles = _choose(queries, keys, values, asked, dropout, engine)
    formula, weights = attention.formula(keys.shape[-1]), f"{queries.shape[-2]} x {keys.shape[-2]}"
    why = f"because {' and '.join(obstacles)}" if obstacles else "as asked for"
    if chosen == "sdpa":
        return Plan(chosen, f"torch's fused attention computes {formula} without forming the {weights} weights")
    if chosen == "flex":
        return Plan(chosen, f"FlexAttention compiles {formula} into one kernel that forms no {weights} weights, {why}")
    if chosen == "chunked":
        return Plan(chosen, f"it computes {formula} a block of queries at a time, not {weights} numbers at once, {why}")
    return Plan(chosen, f"it forms every step of {formula}, {weights} numbers each, {why}")


def _choose(
    queries: Tensor, keys: Tensor, values: Tensor, attention: Attention, dropout: float, engine: str | None
) -> tuple[str, list[str]]:
    """Return the engine that runs the call, and why faster ones do not."""
    given = (queries, keys, values, attention, dropout)
    if engine is not None:
        if engine not in ENGINES:
            raise ValueError(f'there is no engine "{engine}"; {hint(engine, ENGINES)}')
        obstacle = ENGINES[engine].cannot(*given)
        if obstacle:
            way = f'leave engine out, or use "{_exact(queries, keys)}"'
            raise ValueError(f'engine="{engine}" cannot run {attention.formula(keys.shape[-1])}: {obstacle}; {way}')
        return engine, []
    obstacle = sdpa.cannot(*given)
    if obstacle is None:
        return "sdpa", []
    obstacles, last = [f"sdpa cannot: {obstacle}"], _exact(queries, keys)
    if last == "chunked":
        obstacle = flex.cannot(*given)
        if obstacle is None and queries.device.type != "cpu":
            return "flex", obstacles
        waits = 'flex, which compiles for half a minute on a CPU, waits for engine="flex"'
        obstacles.append(f"flex cannot: {obstacle}" if obstacle else waits)
    return last, obstacles


def _exact(queries: Tensor, keys: Tensor) -> str:
    """The faster of the two engines that can run everything. Sizes that are not known yet cannot be cut into blocks."""
    if torch_modes.sizes_are_open(queries, keys):
        return "reference"
    batch, heads, rows, _ = queries.shape
    return "reference" if batch * heads * rows * keys.shape[-2] <= SMALL else "chunked"


def _mishandled(queries: Tensor, keys: Tensor, context: Tensor, attention: Attention) -> bool:
    """Whether a NaN may have gone astray in a fused kernel: through the mask, since a hidden key's weight is zero and
    0 · NaN = NaN, or away, since a row of nothing but NaN has no largest score and some kernels take it for empty.

    Looking is cheap beside the attention on a CPU (one query and many keys apart: there the keys are most of the work).
    On a GPU it would make every call wait, so there the kernel's answer stands.
    """
    if context.device.type != "cpu":
        return False
    suspects = [queries] if queries.shape[-2] == 1 < keys.shape[-2] else [queries, keys]
    if attention.mask != everyone or attention.bias is not None:
        suspects.append(context)
    return broken(*suspects)
