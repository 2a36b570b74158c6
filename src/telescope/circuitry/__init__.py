"""What the heads of a model are for, from its weights alone: QK and OV circuits, their singular
directions, and how heads compose (Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits").

factors.py has a matrix by its two thin factors; vocabulary.py multiplies over all tokens, in
blocks; layer_weights.py reads the heads of one attention; circuits.py is the table of a model.
"""

from .circuits import Circuits, HeadCircuits, circuits
from .factors import Composition, Directions, Factors
from .layer_weights import Biases

__all__ = [
    "Biases",
    "Circuits",
    "Composition",
    "Directions",
    "Factors",
    "HeadCircuits",
    "circuits",
]
