"""Whole models, made of layers: each with a config, its attention, a cache to decode with, and a loss to learn by."""

from .gpt import GPT, GPTConfig
from .transformer import Transformer, TransformerCache, TransformerConfig

__all__ = ["GPT", "GPTConfig", "Transformer", "TransformerCache", "TransformerConfig"]
