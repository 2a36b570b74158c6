"""Every head of a model over a corpus: read texts, add up exact sums on any number of processes,
compare, share.

Imports watch, recording, decoding and models, and nothing about training or the command line. Read
run.py first.
"""

from .atlas import Atlas
from .atlas import open_saved as open
from .compare import Comparison, compare
from .run import AtlasProgress, atlas

__all__ = ["Atlas", "AtlasProgress", "Comparison", "atlas", "compare", "open"]
