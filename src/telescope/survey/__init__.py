"""`survey`: exact statistics of every query and every key of an attention, in memory that grows with n, not with n².

May import attention/, engines/ and words.py. Read survey.py first; then reference.py, the definition of all numbers.
chunked.py computes the same block by block on any device, triton.py with kernels/ on a GPU.
"""

from .cells import Cells
from .dispatch import ENGINES
from .marks import Marks
from .summary import Summary
from .survey import Survey, survey, survey_unchecked

__all__ = ["ENGINES", "Cells", "Marks", "Summary", "Survey", "survey", "survey_unchecked"]
