"""The same result, faster: `attend` runs a definition on the fastest engine that can, `plan_attend`
says which.

This room imports attention/ and words.py; engines never import each other. Read dispatch.py first,
then reference.py, which defines the result that sdpa.py, flex.py and chunked.py must give.
"""

from .dispatch import Plan, attend, plan_attend

__all__ = ["Plan", "attend", "plan_attend"]
