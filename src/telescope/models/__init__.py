"""Whole models, made of layers: each with a config, its attention, a cache to decode with, and a loss to learn by."""

from .config import Config
from .encoder import Encoder, EncoderConfig
from .gpt import GPT, GPTConfig
from .luong import LuongCache, LuongConfig, LuongMemory, LuongTranslator
from .transformer import Transformer, TransformerCache, TransformerConfig

__all__ = [
    "GPT",
    "Config",
    "Encoder",
    "EncoderConfig",
    "GPTConfig",
    "LuongCache",
    "LuongConfig",
    "LuongMemory",
    "LuongTranslator",
    "Transformer",
    "TransformerCache",
    "TransformerConfig",
]
