"""The anatomy of a model: where its token embeddings, its heads, W_q, W_k, W_v, W_O, its norms and
its unembedding are.

The only place that knows what models call these parts: Telescope's own, and the families of
transformers. Imports layers. modules.py has the modules by path and by class; parts.py has the
embeddings, the number of heads and W_O; query_key.py has W_q, W_k and W_v, down to the rows of a
single head; residual.py has what stands between attentions: norms, positions, the unembedding;
stream_parts.py has what writes to a residual stream, in any model.
"""

from .modules import Modules
from .parts import OutputProjection, count_heads, find_output_projections, token_embeddings
from .query_key import NORMS, QueryKeyProjections, Rows, find_query_key, unknown_parts, why_unknown
from .residual import (
    Norm,
    StreamSides,
    Vocabulary,
    find_positions,
    find_sides,
    find_vocabulary,
    read_norm,
)
from .stream_parts import StreamParts, find_stream_parts, find_unembedding

__all__ = [
    "NORMS",
    "Modules",
    "Norm",
    "OutputProjection",
    "QueryKeyProjections",
    "Rows",
    "StreamParts",
    "StreamSides",
    "Vocabulary",
    "count_heads",
    "find_output_projections",
    "find_positions",
    "find_query_key",
    "find_sides",
    "find_stream_parts",
    "find_unembedding",
    "find_vocabulary",
    "read_norm",
    "token_embeddings",
    "unknown_parts",
    "why_unknown",
]
