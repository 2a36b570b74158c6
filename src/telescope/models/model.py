"""What every model has beside its layers: a config that says all of its shape, what its ids mean, and `save`."""

import os

from tokenizers import Tokenizer
from torch import nn

from ..attention import Attention
from .config import Config
from .special import Special


class Model(nn.Module):
    """The base of all models. `tokenizer` turns text into its ids, if there is one; `special` are ids of no word."""

    config: Config
    tokenizer: Tokenizer | None = None
    special: Special = Special()

    @property
    def attention(self) -> Attention:
        """The definition that its layers were made with."""
        raise NotImplementedError(f"{type(self).__name__} does not say with which definition it was made")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and, if there is a tokenizer, tokenizer.json into the folder `path`.

        The folder is there whole or not at all. One that was saved before is replaced; any other is left alone.
        """
        from .files.save import save

        save(self, path)
