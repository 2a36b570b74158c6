"""Small models of every family that `fuzz` draws, their texts, and how a padded batch of them is
run.

Models are cached: a process draws thousands of cases on some hundred models.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

import telescope as ts

from .attentions import WrongError

VOCABULARY = 47
PAD = 0
FIRST_WORD = 3  # ids below are padding, the end and the beginning of a text
SIDES = ("left", "right", "both")
MAX_POSITIONS = 64
WINDOW = 4

# ------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Sizes:
    """What a model is made of; `weights` is the seed of its parameters."""

    heads: int = 4
    key_heads: int = 4
    layers: int = 2
    groups: int = 1
    """Sets of shared parameters of an ALBERT."""
    implementation: str = "sdpa"
    dtype: str = "float64"
    weights: int = 0

    @property
    def width(self) -> int:
        return 8 * self.heads


@dataclass(frozen=True)
class Family:
    """A family of models, and how it is called with sentences.

    sides       where its sentences may be padded
    translates  whether it has a decoder that reads another text
    own         whether it is Telescope's own
    predicts    whether it returns logits of the next token
    writes      whether `generate` runs it
    """

    make: Callable[[Sizes], nn.Module]
    sides: tuple[str, ...] = SIDES
    translates: bool = False
    own: bool = False
    predicts: bool = True
    writes: bool = True

    @property
    def is_recurrent(self) -> bool:
        return self.make is _luong

    @property
    def has_known_projection(self) -> bool:
        """Whether norms can be recorded.

        A recurrent decoder has no W_O, ModernBERT's has another name, and DiffLlama's reads two
        sets of values.
        """
        return self.make not in (_luong, _modernbert, _diffllama)


def _transformers_model(kind: str, options: dict[str, Any], sizes: Sizes) -> nn.Module:
    import transformers

    config_name = kind.removesuffix("Model")
    for ending in ("ForCausalLM", "LMHead", "ForConditionalGeneration", "MT", "ForMaskedLM"):
        config_name = config_name.removesuffix(ending)
    config = getattr(transformers, f"{config_name}Config")(
        vocab_size=VOCABULARY, pad_token_id=PAD, **options
    )
    config._attn_implementation = sizes.implementation
    return getattr(transformers, kind)(config)


def _llama(kind: str, **more: Any) -> Callable[[Sizes], nn.Module]:
    def make(sizes: Sizes) -> nn.Module:
        options = {
            "hidden_size": sizes.width,
            "intermediate_size": 36,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.key_heads,
            "max_position_embeddings": MAX_POSITIONS,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        return _transformers_model(kind, options | more, sizes)

    return make


_diffllama = _llama("DiffLlamaForCausalLM")


def _gpt2(sizes: Sizes) -> nn.Module:
    options = {
        "n_positions": MAX_POSITIONS,
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
    }
    return _transformers_model(
        "GPT2LMHeadModel", options | {"bos_token_id": 1, "eos_token_id": 2}, sizes
    )


def _bert(kind: str, **more: Any) -> Callable[[Sizes], nn.Module]:
    def make(sizes: Sizes) -> nn.Module:
        options = {
            "hidden_size": sizes.width,
            "intermediate_size": 36,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "max_position_embeddings": MAX_POSITIONS,
        }
        if kind.startswith("Albert"):
            options |= {"embedding_size": 12, "num_hidden_groups": sizes.groups}
        return _transformers_model(kind, options | more, sizes)

    return make


_modernbert = _bert(
    "ModernBertModel",
    local_attention=2 * WINDOW,
    global_attn_every_n_layers=2,
    cls_token_id=1,
    sep_token_id=2,
    bos_token_id=1,
    eos_token_id=2,
)


def _t5(sizes: Sizes) -> nn.Module:
    options = {
        "d_model": sizes.width,
        "d_kv": 8,
        "d_ff": 36,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 1,
        "eos_token_id": 2,
    }
    return _transformers_model("T5ForConditionalGeneration", options, sizes)


def _bart(kind: str) -> Callable[[Sizes], nn.Module]:
    def make(sizes: Sizes) -> nn.Module:
        options = {
            "d_model": sizes.width,
            "encoder_layers": sizes.layers,
            "decoder_layers": sizes.layers,
            "encoder_attention_heads": sizes.heads,
            "decoder_attention_heads": sizes.heads,
            "encoder_ffn_dim": 36,
            "decoder_ffn_dim": 36,
            "max_position_embeddings": MAX_POSITIONS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "forced_eos_token_id": None,
            "decoder_start_token_id": 1,
        }
        return _transformers_model(kind, options, sizes)

    return make


def _gpt(sizes: Sizes) -> nn.Module:
    config = ts.models.GPTConfig(
        vocabulary=VOCABULARY,
        max_positions=MAX_POSITIONS,
        d_model=sizes.width,
        blocks=sizes.layers,
        heads=sizes.heads,
        key_heads=sizes.key_heads,
        positions="rotary" if sizes.weights % 2 else "learned",
        window=WINDOW if sizes.weights % 3 == 2 else None,
    )
    return ts.models.GPT(config)


def _encoder(sizes: Sizes) -> nn.Module:
    options = {"vocabulary": VOCABULARY, "max_positions": MAX_POSITIONS, "d_model": sizes.width}
    return ts.models.Encoder(
        ts.models.EncoderConfig(**options, blocks=sizes.layers, heads=sizes.heads)
    )


def _transformer(sizes: Sizes) -> nn.Module:
    blocks = {"encoder_blocks": sizes.layers, "decoder_blocks": sizes.layers}
    config = ts.models.TransformerConfig(
        vocabulary=VOCABULARY, d_model=sizes.width, heads=sizes.heads, **blocks
    )
    return ts.models.Transformer(config)


def _luong(sizes: Sizes) -> nn.Module:
    return ts.models.LuongTranslator(
        ts.models.LuongConfig(vocabulary=VOCABULARY, d_model=sizes.width)
    )


# A window on the second half of the layers of Qwen2, on every second of Gemma 2, on all of Mistral.
QWEN2_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
GEMMA2 = {
    "head_dim": 8,
    "sliding_window": WINDOW,
    "attn_logit_softcapping": 3.0,
    "query_pre_attn_scalar": 11,
}
RIGHT = ("right",)  # of families that count positions from the first column, padding or not

FAMILIES = {
    "llama": Family(_llama("LlamaForCausalLM")),
    "gpt2": Family(_gpt2),
    "qwen2": Family(_llama("Qwen2ForCausalLM", **QWEN2_WINDOW)),
    "mistral": Family(_llama("MistralForCausalLM", sliding_window=WINDOW)),
    "gemma2": Family(_llama("Gemma2ForCausalLM", **GEMMA2)),
    "diffllama": Family(_diffllama),
    "bert": Family(_bert("BertModel"), predicts=False, writes=False),
    "modernbert": Family(_modernbert, predicts=False, writes=False),
    "albert": Family(_bert("AlbertModel"), predicts=False, writes=False),
    "t5": Family(_t5, translates=True),
    "bart": Family(_bart("BartForConditionalGeneration"), RIGHT, translates=True),
    "marian": Family(_bart("MarianMTModel"), RIGHT, translates=True),
    "GPT": Family(_gpt, own=True),
    "Encoder": Family(_encoder, own=True, predicts=False, writes=False),
    "Transformer": Family(_transformer, RIGHT, translates=True, own=True),
    "LuongTranslator": Family(_luong, RIGHT, translates=True, own=True),
}
EAGER_ONLY = ("gemma2",)  # torch's attention has no softcap: with sdpa the family drops it
GROUPED = ("llama", "qwen2", "mistral", "gemma2", "diffllama", "GPT")


@lru_cache(maxsize=256)
def model_of(family: str, sizes: Sizes, device: str) -> nn.Module:
    """Return a model with random numbers in every parameter: a bias of zeros would hide a
    mistake.
    """
    torch.manual_seed(0)
    model = FAMILIES[family].make(sizes)
    dice = torch.Generator().manual_seed(sizes.weights)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:  # Marian's sinusoids
                continue
            spread = torch.randn(parameter.shape, generator=dice)
            if parameter.ndim == 1:
                parameter.copy_(0.3 * spread + (1.0 if name.endswith("weight") else 0.0))
            else:
                parameter.copy_(spread * min(parameter.shape) ** -0.5)
    if isinstance(model, ts.models.GPT | ts.models.Transformer | ts.models.LuongTranslator):
        model.special = ts.models.Special(start=1, end=(2,))
    return model.to(device, getattr(torch, sizes.dtype)).eval()


# -------------------------------------------------------------------------------------------- texts


@dataclass
class Padded:
    """Token ids of several sentences, and which of them are no padding."""

    ids: Tensor
    keep: Tensor

    def real(self, i: int) -> Tensor:
        """Return which columns of a sentence are no padding, on the CPU: such a mask indexes
        tensors of any device.
        """
        return self.keep[i].cpu()

    def column(self, i: int) -> int:
        """Return the column of a sentence's first token."""
        return int(self.keep[i].int().argmax())

    def length(self, i: int) -> int:
        return int(self.keep[i].sum())

    def sentence(self, i: int) -> Tensor:
        return self.ids[i, self.keep[i]][None]


def words(count: int, dice: random.Random) -> list[int]:
    """Return a sentence in which tokens, and pairs of tokens, occur again; the id of padding may be
    a word too.
    """
    sentence = [
        dice.choice((PAD, *range(FIRST_WORD, VOCABULARY, dice.choice((1, 8)))))
        for _ in range(count)
    ]
    begin = dice.randint(1, max(1, count // 2))
    for i in range(begin, count):
        if dice.random() < 0.6:
            sentence[i] = sentence[i - begin]
    return sentence


def padded(
    lengths: Iterable[int], side: str, dice: random.Random, device: str, more: int = 0
) -> Padded:
    """Return sentences of these lengths, padded to `more` tokens beyond the longest."""
    lengths = list(lengths)
    width = max(lengths) + more
    ids = torch.full((len(lengths), width), PAD)
    keep = torch.zeros(len(lengths), width, dtype=torch.bool)
    for i, length in enumerate(lengths):
        start = {"left": width - length, "right": 0, "both": (width - length) // 2}[side]
        ids[i, start : start + length] = torch.tensor(words(length, dice))
        keep[i, start : start + length] = True
    return Padded(ids.to(device), keep.to(device))


@dataclass(frozen=True)
class Inputs:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, model: nn.Module) -> Tensor:
        """Return the logits, or the hidden states of a model without."""
        output = model(*self.args, **self.kwargs)
        if isinstance(output, Tensor):
            return output
        logits: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
        return logits

    @property
    def for_effect(self) -> Any:
        return self.kwargs or self.args


@dataclass(frozen=True)
class Texts:
    """A padded batch for a family, and its sentences alone. `target` is what a decoder reads."""

    family: Family
    source: Padded
    target: Padded

    @property
    def written(self) -> Padded:
        """The sentences whose next tokens are predicted."""
        return self.target if self.family.translates else self.source

    @property
    def count(self) -> int:
        return len(self.source.ids)

    def batch(self) -> Inputs:
        return self._inputs(self.source.ids, self.target.ids, self.source.keep, self.target.keep)

    def alone(self, i: int) -> Inputs:
        return self._inputs(self.source.sentence(i), self.target.sentence(i), None, None)

    def sides(self, layer: str, across: bool) -> tuple[Padded, Padded]:
        """Return the sentences that the queries and the keys of an attention belong to."""
        is_encoder = "encoder" in layer and not across
        queries = self.source if is_encoder or not self.family.translates else self.target
        return queries, self.source if across else queries

    def _inputs(
        self, source: Tensor, target: Tensor, of_source: Tensor | None, of_target: Tensor | None
    ) -> Inputs:
        is_padded = of_source is not None
        # Every model but a translator is told the positions, so that padding in front shifts none.
        positions = (of_source.long().cumsum(1) - 1).clamp(min=0) if is_padded else None
        if not self.family.own:
            named = {"input_ids": source}
            if is_padded:
                named["attention_mask"] = of_source.long()
            if self.family.translates:
                named["decoder_input_ids"] = target
                if is_padded:
                    named["decoder_attention_mask"] = of_target.long()
            elif is_padded:
                named["position_ids"] = positions
            return Inputs((), named)
        if self.family.translates:
            masks = (
                (ts.padding(of_source.sum(1)), ts.padding(of_target.sum(1)))
                if is_padded
                else (None, None)
            )
            return Inputs((source, target, *masks), {})
        mask = ts.padding(keep=of_source) if is_padded else None
        types = (None,) if self.family.make is _encoder else ()
        return Inputs((source, mask, *types, positions), {})


def texts_of(
    name: str,
    lengths: Iterable[int],
    side: str,
    dice: random.Random,
    device: str,
    *,
    least: int = 2,
) -> Texts:
    """Draw a batch: sentences of these lengths, and of a translator their targets, of at least
    `least` tokens.
    """
    family = FAMILIES[name]
    lengths = list(lengths)
    source = padded(lengths, side, dice, device, more=dice.randint(0, 3))
    targets = [dice.randint(least, max(least, 9)) for _ in lengths]
    target = padded(
        targets, side if name == "t5" else "right", dice, device, more=dice.randint(0, 3)
    )
    return Texts(family, source, target)


# -------------------------------------------------------------------------------------------- cases

BOUNDS = {"float64": 1e-6, "float32": 1e-3}
"""The largest difference, as a share of the largest number that is compared, and at least of 1.

Two runs of one model add the same numbers in another order, which rounds by 1e-16 or 6e-8. Layers
multiply this: norms of small vectors and softmaxes of large scores by up to some thousand. A
mistake, such as one key too many, changes weights by 1e-2 or more.
"""


@dataclass(frozen=True)
class ModelCase:
    """A model, texts and what is compared."""

    check: str
    family: str
    sizes: Sizes
    side: str = "left"
    lengths: tuple[int, ...] = (9, 6)
    seed: int = 0
    device: str = "cpu"

    @property
    def model(self) -> nn.Module:
        return model_of(self.family, self.sizes, self.device)

    @property
    def is_exact(self) -> bool:
        """Whether ranks and kinds are compared too, which rounding can change in float32."""
        return self.sizes.dtype == "float64"

    def dice(self) -> random.Random:
        """Return the random numbers of the case, always the same ones."""
        return random.Random(self.seed)

    def near(self, what: str, got: Any, exact: Any) -> None:
        """Raise a WrongError where numbers differ by more than the bound of the model's dtype."""
        mine = torch.as_tensor(got).detach().double().cpu()
        right = torch.as_tensor(exact).detach().double().cpu()
        if mine.shape != right.shape:
            raise WrongError(what, f"shape {tuple(mine.shape)}, not {tuple(right.shape)}", "")
        if not right.numel():
            return
        same = (mine == right) | (mine.isnan() & right.isnan())  # infinities and unknown numbers
        off = float((mine - right).abs().masked_fill(same, 0.0).nan_to_num(nan=torch.inf).max())
        largest = float(right.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max())
        bound = BOUNDS[self.sizes.dtype] * max(1.0, largest)
        if not off <= bound:
            raise WrongError(what, f"off by {off:.3g} where rounding explains {bound:.3g}", "")

    def equal(self, what: str, got: object, exact: object) -> None:
        """Raise a WrongError where two values are not equal."""
        if got != exact:
            raise WrongError(what, f"{str(got)[:200]}, not {str(exact)[:200]}", "")
