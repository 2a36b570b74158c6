"""From a model to text: `generate` decodes greedily or by sampling, `stream` yields each token,
`beam` searches.

May import: attention, layers and models. Read first: generate.py; every model is reached through
writers.py.
"""

from .beam import beam
from .generate import generate, stream
from .output import Token, Written

__all__ = ["Token", "Written", "beam", "generate", "stream"]
