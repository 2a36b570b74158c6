"""The families that are known, by their model_type."""

from .bert import BERT
from .family import Family
from .gpt2 import GPT2
from .llama import LLAMA, MISTRAL, QWEN2
from .marian import MARIAN

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, BERT, MARIAN)}
