"""What every model has beside its layers: a config that says all of its shape, a tokenizer perhaps, and `save`."""

import os

from tokenizers import Tokenizer
from torch import nn

from .config import Config


class Model(nn.Module):
    """The base of all models. `tokenizer` turns text into its ids; None where there is none."""

    config: Config
    tokenizer: Tokenizer | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write config.json, model.safetensors and, if there is one, tokenizer.json into the folder `path`.

        The folder is there whole or not at all. One that was saved before is replaced; any other is left alone.
        """
        from .files.save import save  # it knows all models, and each of them is a Model

        save(self, path)
