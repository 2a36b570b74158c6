"""The anatomy of a model: where its token embeddings, its heads, W_q, W_k and W_O are.

The only place that knows what models call these parts: Telescope's own, and the families of
transformers. Imports layers. modules.py has the modules by path and by class; parts.py has the
embeddings, the number of heads and W_O; query_key.py has W_q and W_k, down to the rows of a single
head.
"""

from .modules import Modules
from .parts import OutputProjection, count_heads, find_output_projections, token_embeddings
from .query_key import QueryKeyProjections, find_query_key, why_unknown

__all__ = [
    "Modules",
    "OutputProjection",
    "QueryKeyProjections",
    "count_heads",
    "find_output_projections",
    "find_query_key",
    "token_embeddings",
    "why_unknown",
]
