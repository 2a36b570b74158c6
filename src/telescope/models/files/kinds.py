"""The models that a folder can hold, by the name that its config.json says, and their configs."""

from ..config import Config
from ..encoder import Encoder, EncoderConfig
from ..gpt import GPT, GPTConfig
from ..luong import LuongConfig, LuongTranslator
from ..model import Model
from ..transformer import Transformer, TransformerConfig

CONFIGS: dict[type[Model], type[Config]] = {
    GPT: GPTConfig,
    Transformer: TransformerConfig,
    Encoder: EncoderConfig,
    LuongTranslator: LuongConfig,
}
KINDS = {kind.__name__: kind for kind in CONFIGS}
# Of config.json; a later one is refused by name. DEFINED also says the definition of the model's attention.
FORMAT, DEFINED = 1, 2
