"""Whole models built from layers, each with a config, a cache for decoding and a loss; saving,
loading and export.

May import layers, engines, files, attention and words. Read model.py first, then gpt.py;
saved/load.py for files.
"""

from ..files.errors import LoadError
from .config import Config, Special
from .encoder import Encoder, EncoderConfig
from .gpt import GPT, GPTConfig
from .luong_translator import LuongCache, LuongConfig, LuongMemory, LuongTranslator
from .model import Model
from .saved.huggingface import export
from .saved.load import load
from .transformer import Transformer, TransformerCache, TransformerConfig

__all__ = [
    "GPT",
    "Config",
    "Encoder",
    "EncoderConfig",
    "GPTConfig",
    "LoadError",
    "LuongCache",
    "LuongConfig",
    "LuongMemory",
    "LuongTranslator",
    "Model",
    "Special",
    "Transformer",
    "TransformerCache",
    "TransformerConfig",
    "export",
    "load",
]
