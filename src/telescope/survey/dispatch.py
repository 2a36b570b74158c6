"""Choose the engine that runs a survey.

An engine is a module with three functions: `cannot` returns why it cannot survey an attention, or None; `summarize`
returns the Summary; `pool` returns a map alone.
"""

from types import ModuleType

from torch import Tensor

from ..attention import Attention
from ..words import hint
from . import chunked, reference, triton

ENGINES: dict[str, ModuleType] = {  # in order of preference
    "triton": triton,
    "chunked": chunked,
    "reference": reference,
}


def choose(queries: Tensor, keys: Tensor, attention: Attention, top: int, engine: str | None) -> str:
    """Return the name of the engine: `engine` if given, else the first that can survey this attention."""
    if engine is None:
        return next(name for name in ENGINES if ENGINES[name].cannot(queries, keys, attention, top) is None)
    if engine not in ENGINES:
        raise ValueError(f'there is no engine "{engine}"; {hint(engine, ENGINES)}')
    obstacle = ENGINES[engine].cannot(queries, keys, attention, top)
    if obstacle:
        formula = attention.formula(keys.shape[-1])
        raise ValueError(f'engine="{engine}" cannot survey {formula}: {obstacle}; leave engine out, or use "chunked"')
    return engine
