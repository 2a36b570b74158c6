"""How many tokens a model reads at once, told before a model is loaded."""

import json
from pathlib import Path
from typing import Any

from ..models import GPT, Model, find_shipped
from ..tasks import max_source_tokens
from .make_run import LONGEST_SENTENCE

# The fields of Telescope's own configs and of those of transformers.
POSITIONS = ("max_positions", "n_positions", "max_position_embeddings")


def most_tokens(source: str | Path | Model) -> int:
    """Return how many tokens of a typed text a model reads at once; `source` is a model, a folder
    or the name of a shipped model.
    """
    if isinstance(source, Model):
        own = source.longest if isinstance(source, GPT) else max_source_tokens(source)
        return min(LONGEST_SENTENCE, own)
    # The config tells, without loading any weights; a folder without one is refused when it is run.
    folder = find_shipped(source) or Path(source)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return LONGEST_SENTENCE
    known = _positions(config) or _positions(
        config.get("config") if isinstance(config, dict) else 0
    )
    return min(LONGEST_SENTENCE, known or LONGEST_SENTENCE)


def _positions(config: Any) -> int | None:
    """Return the number of positions that a config names, if it names one."""
    if not isinstance(config, dict):
        return None
    numbers = (config.get(name) for name in POSITIONS)
    return next((one for one in numbers if type(one) is int and one > 0), None)
