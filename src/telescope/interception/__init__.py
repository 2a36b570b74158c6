"""Record a model's attention while it runs: Telescope's models by module hooks, Hugging Face's by
their interface, any other by the functions of torch that it calls.

Imports recording and the rooms below it, layers, and transformers if the model needs it. Read
watch.py first: it lists the way of one call from the model into the recording.
"""

from . import captured_steps as captured_steps  # which decoding finds by layers.step_observers
from .compiled import AttentionTap, ScoreEdit
from .found import FoundAttentions
from .interceptor import EDIT, Bypass, HandledCall, Handler
from .module_hook import COMPILED, runs_for
from .text import RealTokens, Text
from .watch import record_calls, tensor_parallel_rank, tensor_parallel_size, watch

__all__ = [
    "COMPILED",
    "EDIT",
    "AttentionTap",
    "Bypass",
    "FoundAttentions",
    "HandledCall",
    "Handler",
    "RealTokens",
    "ScoreEdit",
    "Text",
    "record_calls",
    "runs_for",
    "tensor_parallel_rank",
    "tensor_parallel_size",
    "watch",
]
