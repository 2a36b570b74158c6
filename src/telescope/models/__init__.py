"""Whole models, made of layers: each with a config, its attention, a cache to decode with, and a loss to learn by."""

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
