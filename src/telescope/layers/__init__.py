"""Trainable layers: attention layers with a definition, the blocks of the Transformer, caches.
Batch first always.

May import engines, attention and words. Read multi_head.py first, then blocks.py for how layers are
combined.
"""

from .attend import Attend

# For other rooms of the package; no public names.
from .attend import DefinedLayer as DefinedLayer
from .attend import DefinitionModule as DefinitionModule
from .attend import OnlyReal as OnlyReal
from .attend import Positions as Positions
from .attend import States as States
from .attend import check_choice as check_choice
from .attend import check_sizes as check_sizes
from .attend import group_size as group_size
from .attend import head_width as head_width
from .attend import told_real as told_real
from .attention_layers import LuongAttention, SelfAttention, SynthesizerAttention
from .blocks import Activation as Activation
from .blocks import (
    AddNorm,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    SinusoidalPositions,
)
from .cache import Cache, CachePosition, LayerCache
from .from_torch import from_torch
from .multi_head import KeysAndValues as KeysAndValues
from .multi_head import MultiHeadAttention
from .multi_head import StackedLinear as StackedLinear
from .steps import StepFollower as StepFollower
from .steps import StepsToFollow as StepsToFollow
from .steps import step_observers as step_observers

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
