"""The anatomy of a model: where its token embeddings, its heads, W_q, W_k and W_O are.

The only place that knows what models call these parts: Telescope's own, and the families of
transformers. Imports layers. modules.py has the modules by path and by class; parts.py has the
embeddings, the number of heads and W_O; query_key.py has W_q and W_k, down to the rows of a single
head; stream_parts.py has what writes to a residual stream.
"""

from .modules import Modules
from .parts import OutputProjection, count_heads, find_output_projections, token_embeddings
from .query_key import NORMS, QueryKeyProjections, find_query_key, why_unknown
from .stream_parts import StreamParts, find_stream_parts, find_unembedding

__all__ = [
    "NORMS",
    "Modules",
    "OutputProjection",
    "QueryKeyProjections",
    "StreamParts",
    "count_heads",
    "find_output_projections",
    "find_query_key",
    "find_stream_parts",
    "find_unembedding",
    "token_embeddings",
    "why_unknown",
]
