"""The models that a folder can hold, by the name that its config.json says, and their configs."""

from ..config import Config
from ..gpt import GPT, GPTConfig
from ..model import Model
from ..transformer import Transformer, TransformerConfig

CONFIGS: dict[type[Model], type[Config]] = {GPT: GPTConfig, Transformer: TransformerConfig}
KINDS = {kind.__name__: kind for kind in CONFIGS}
FORMAT = 1  # of config.json; a later one is refused by name
