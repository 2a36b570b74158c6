"""Trainable layers: attention layers with a definition, the blocks of the Transformer, caches.
Batch first always.

May import engines, attention and words. Read multi_head.py first, then blocks.py for how layers are
combined.
"""

from .attend import Attend
from .blocks import AddNorm, DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward
from .cache import Cache, CachePosition, LayerCache
from .from_torch import from_torch
from .luong import LuongAttention
from .multi_head import MultiHeadAttention
from .position_embedding import LearnedPositions, SinusoidalPositions
from .self_attention import SelfAttention
from .synthesizer import SynthesizerAttention

__all__ = [
    "AddNorm",
    "Attend",
    "Cache",
    "CachePosition",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "GatedFeedForward",
    "LayerCache",
    "LearnedPositions",
    "LuongAttention",
    "MultiHeadAttention",
    "SelfAttention",
    "SinusoidalPositions",
    "SynthesizerAttention",
    "from_torch",
]
