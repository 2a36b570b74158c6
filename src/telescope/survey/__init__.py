"""`survey`: exact numbers about every query and every key of an attention, without ever holding the matrix."""

from .cells import Cells
from .dispatch import ENGINES
from .summary import Marks, Summary
from .survey import Survey, read_off, survey

__all__ = ["ENGINES", "Cells", "Marks", "Summary", "Survey", "read_off", "survey"]
