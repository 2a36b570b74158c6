"""`survey`: exact statistics of every query and every key of an attention, in memory that grows
with n, not with n².

May import attention/, engines/ and words.py. Read survey.py first; then reference.py, the
definition of all numbers. chunked.py computes the same block by block on any device, fused.py with
cpu_kernels.py on a CPU, triton.py with kernels/ on a GPU. plan.py says which of them runs.
"""

from .cells import Cells
from .dispatch import ENGINES
from .marks import Marks
from .plan import plan, plan_survey
from .summary import Summary
from .survey import Survey, survey, survey_unchecked

__all__ = [
    "ENGINES",
    "Cells",
    "Marks",
    "Summary",
    "Survey",
    "plan",
    "plan_survey",
    "survey",
    "survey_unchecked",
]
