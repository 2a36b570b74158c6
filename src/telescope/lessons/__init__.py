"""What the notebooks of lessons/ need: checks of the exercises, the vectors of the examples, plain
weight matrices, and a language model; and the codes that students hand in from the page.

May import watch and what is below it. Read check.py first: each function of it takes a reader's own
solution, compares it with the library, and says what is wrong with a wrong one.
"""

from . import check
from .calling import WrongAnswer
from .material import JOURNEY, TELESCOPE, journey, matrices, passages
from .quiz import QuizResult, TryResult, read_code
from .real_models import smollm2

__all__ = [
    "JOURNEY",
    "TELESCOPE",
    "QuizResult",
    "TryResult",
    "WrongAnswer",
    "check",
    "journey",
    "matrices",
    "passages",
    "read_code",
    "smollm2",
]
