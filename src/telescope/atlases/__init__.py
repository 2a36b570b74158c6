"""Every head of a model over a corpus: read texts, add up exact sums on any number of processes,
compare, share.

Imports watch, recording, decoding and models, and nothing about training or the command line. Read
run.py first.
"""

from .atlas import Atlas, Evidence
from .atlas import open_saved as open
from .compare import Comparison, compare
from .fingerprint import weights_checksum
from .folder import is_atlas
from .run import AtlasProgress, atlas
from .shard_reader import EXCERPT
from .sums import STATISTICS
from .texts import encoder_of, text_at

__all__ = [
    "EXCERPT",
    "STATISTICS",
    "Atlas",
    "AtlasProgress",
    "Comparison",
    "Evidence",
    "atlas",
    "compare",
    "encoder_of",
    "is_atlas",
    "open",
    "text_at",
    "weights_checksum",
]
