"""Hugging Face's folders: their configs and tensors as ours, and ours as theirs. `transformers` is not needed."""

from .read import load
from .write import export

__all__ = ["export", "load"]
