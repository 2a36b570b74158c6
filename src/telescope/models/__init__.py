"""Whole models built from layers, each with a config, a cache for decoding and a loss; saving,
loading and export.

May import layers, engines, files, attention and words. Read model.py first, then gpt.py;
saved/load.py for files.
"""

from ..files import LoadError
from .encoder import Encoder, EncoderConfig
from .gpt import GPT, GPTConfig
from .loss import Translator as Translator
from .luong_translator import LuongCache, LuongConfig, LuongMemory, LuongTranslator

# For other rooms of the package; no public names.
from .model import MODEL_CLASSES as MODEL_CLASSES
from .model import Config, Model, Special
from .model import check_at_least_one as check_at_least_one
from .model import check_at_most as check_at_most
from .model import check_positive as check_positive
from .model import check_probabilities as check_probabilities
from .model import custom_attention as custom_attention
from .saved.load import check_device as check_device
from .saved.load import export, load
from .saved.load import find_model as find_model
from .saved.load import find_shipped as find_shipped
from .saved.load import shipped_models as shipped_models
from .saved.tokenizer_file import read_tokenizer as read_tokenizer
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
