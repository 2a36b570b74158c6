"""The same result, faster: `attend` runs a definition on the fastest engine that can, `plan_attend`
says which.

This room imports attention/ and words.py; engines never import each other. Read dispatch.py first,
then reference.py, which defines the result that sdpa.py, flex.py and chunked.py must give.
"""

from .dispatch import ENGINES, Plan, attend, check, check_dropout, check_without_values, plan_attend

# Arithmetic that other rooms need to agree with the engines.
from .exact import nan_safe_weigh, repeat_key_heads, upcast_half
from .reference import STEPS, formulas

__all__ = [
    "ENGINES",
    "STEPS",
    "Plan",
    "attend",
    "check",
    "check_dropout",
    "check_without_values",
    "formulas",
    "nan_safe_weigh",
    "plan_attend",
    "repeat_key_heads",
    "upcast_half",
]
