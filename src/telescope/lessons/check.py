"""Checks of the exercises: each takes the reader's solution, and says what is wrong with a wrong
one.

A check compares with the library on inputs that the reader has not seen, and knows the usual
mistakes of its exercise.
"""

from .check_attention import (
    attention_of,
    entropy,
    even_weights,
    score_variance,
    scores,
    weight_free,
)
from .check_authors import attributed, held_norm, split_score
from .check_blocks import decoder_block, encoder_block, layer_norm, positions
from .check_changing import hidden, muted
from .check_corpus import changed, clipped, corpus_mean
from .check_heads import (
    cross_attention,
    general_score,
    luong,
    merge_heads,
    multi_head,
    parameters,
    split_heads,
)
from .check_kernels import attend_in_blocks, bytes_of_weights, entropy_from_lse, received
from .check_latent import kept_weight, latent_context
from .check_looking import induction_share, previous_share
from .check_models import corrupt, gpt, transformer
from .check_readings import causal_mask, cosine, masked_softmax, reads, towards, two_readings
from .check_softmax import negative_weight, softmax, with_temperature
from .check_sources import carried, rank_correlation, rollout
from .check_synthesizer import synthesizer, synthesizer_parameters
from .check_training import baseline, next_token_loss

__all__ = [
    "attend_in_blocks",
    "attention_of",
    "attributed",
    "baseline",
    "bytes_of_weights",
    "carried",
    "causal_mask",
    "changed",
    "clipped",
    "corpus_mean",
    "corrupt",
    "cosine",
    "cross_attention",
    "decoder_block",
    "encoder_block",
    "entropy",
    "entropy_from_lse",
    "even_weights",
    "general_score",
    "gpt",
    "held_norm",
    "hidden",
    "induction_share",
    "kept_weight",
    "latent_context",
    "layer_norm",
    "luong",
    "masked_softmax",
    "merge_heads",
    "multi_head",
    "muted",
    "negative_weight",
    "next_token_loss",
    "parameters",
    "positions",
    "previous_share",
    "rank_correlation",
    "reads",
    "received",
    "rollout",
    "score_variance",
    "scores",
    "softmax",
    "split_heads",
    "split_score",
    "synthesizer",
    "synthesizer_parameters",
    "towards",
    "transformer",
    "two_readings",
    "weight_free",
    "with_temperature",
]
