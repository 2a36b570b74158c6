"""From a model to text: `generate` samples or is greedy, `stream` hands over every token, `beam` searches."""

from .beam import beam
from .generate import generate, stream
from .line import Token, Written

__all__ = ["Token", "Written", "beam", "generate", "stream"]
