"""From a model to text: `generate` decodes greedily or by sampling, `stream` yields each token,
`beam` searches.

May import: attention, layers and models. Read first: generate.py; every model is reached through
writers.py.
"""

from .beam import beam
from .generate import generate, stream

# For other rooms of the package; no public names.
from .request import IncrementalDecoder as IncrementalDecoder
from .request import Token, Written
from .sampling import Choices as Choices
from .sampling import largest as largest
from .sampling import temperature as temperature
from .sampling import top_k as top_k
from .sampling import top_p as top_p
from .writers import start_token as start_token

__all__ = ["Token", "Written", "beam", "generate", "stream"]
