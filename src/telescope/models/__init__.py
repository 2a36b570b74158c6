"""Whole models, made of layers: each with a config, its attention, a cache to decode with, and a loss to learn by."""

from ..files.errors import LoadError
from .config import Config
from .encoder import Encoder, EncoderConfig
from .files.huggingface import export
from .files.load import load
from .gpt import GPT, GPTConfig
from .luong import LuongCache, LuongConfig, LuongMemory, LuongTranslator
from .model import Model
from .special import Special
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
