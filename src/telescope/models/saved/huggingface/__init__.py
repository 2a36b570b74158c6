"""Import of Hugging Face folders and export to them, without the `transformers` package.

May import what models may. Read family.py first, then gpt2.py as an example of a family.
"""

from .read import load
from .write import export

__all__ = ["export", "load"]
