"""Where attentions read and write the residual stream: the norms before and after them, the
embeddings, the positions and the unembedding.

Known are Telescope's blocks, and the blocks of transformers by the names of their norms. Of a norm
the numbers are read, and the module is run once to see that these are the numbers it multiplies by:
Gemma's gain is 1 + weight.
"""

from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..layers import AddNorm, Attend, LearnedPositions, SinusoidalPositions
from .modules import Modules

BEFORE = ("input_layernorm", "ln_1", "layernorm_before", "layer_norm1", "attn_norm")
"""Norms of a block of transformers that come before its attention, in every class that has them."""
AFTER = ("post_self_attn_layernorm", "post_attention_layernorm")
"""Norms that come between W_O and the addition, the second beside `post_feedforward_layernorm`."""
OTHERS = (
    *("ln_2", "ln_cross_attn", "layernorm_after", "layer_norm2", "mlp_norm", "final_layer_norm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm", "post_mlp_layernorm"),
    *("layer_norm", "LayerNorm", "full_layer_layer_norm", "sa_layer_norm", "output_layer_norm"),
    *("self_attn_layer_norm", "encoder_attn_layer_norm"),
)
"""Norms that a block may have elsewhere."""
ACROSS = ("encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention")
"""What models call an attention to the encoder's output."""
FINAL_NORMS = (
    "norm",
    "ln_f",
    "final_layer_norm",
    "final_layernorm",
    "layer_norm",
    "final_norm",
    "layernorm",
)
"""What models call the norm after the last layer, beside the list of layers."""
TOKENS = ("embed_tokens", "wte", "embed_in", "tok_embeddings")
"""What stacks of transformers call their token embedding."""
POSITIONS = ("wpe", "embed_positions")
"""What stacks of transformers call a table of positions."""
HEADS = ("lm_head", "embed_out", "proj_out")
"""What models call an unembedding that reads the normalised stream itself."""
TOLERANCE = 0.02  # relative error of a norm that bfloat16 may explain


@dataclass(frozen=True, eq=False)
class Norm:
    """The linear part of a norm: x is centred, if it is a LayerNorm, and multiplied by the gain.

    The rest is a division by the size of x, one positive number for each token, and a bias.
    """

    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    centres: bool

    def before(self, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """Return the matrix that reads x as `rows` read the norm of x."""
        scaled = rows * self.gain.to(rows)
        return scaled - scaled.mean(-1, keepdim=True) if self.centres else scaled

    def after(self, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """Return the norm of each row, but for the division by its size and the bias."""
        centred = rows - rows.mean(-1, keepdim=True) if self.centres else rows
        return centred * self.gain.to(rows)


@dataclass(frozen=True, eq=False)
class StreamSides:
    """Where one attention reads the residual stream, and where it writes."""

    query_norm: Norm | None
    """Before the queries; None if these read the stream itself."""
    key_norm: Norm | None
    """Before the keys and values: in cross-attention, at the end of the encoder."""
    output_norm: Norm | None
    """After W_O, before the output is added to the stream."""
    is_post_norm: bool
    """Whether the stream itself is normalised after each addition."""
    queries_from: str
    """The stack whose stream it reads and writes: "encoder", "decoder", or "" of a single one."""
    keys_from: str
    """The stack whose stream the keys and values are read from."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The token embedding of one stack, and the unembedding after the last layer."""

    embedding: Float[Tensor, "vocabulary d_model"]
    unembedding: Float[Tensor, "vocabulary d_model"]
    norm: Norm | None
    """The norm before the unembedding."""


# ------------------------------------------------------------------------------------------- norms


@torch.no_grad()
def read_norm(module: Any) -> Norm | None:
    """Return the linear part of a norm; None for no norm at all.

    Raise a ValueError if the module is no norm whose numbers can be read.
    """
    if module is None or isinstance(module, nn.Identity):
        return None
    kind = type(module).__name__
    weight = _whole(getattr(module, "weight", None))
    bias = _whole(getattr(module, "bias", None))
    size = getattr(module, "normalized_shape", None) or (0 if weight is None else len(weight))
    width = size if isinstance(size, int) else size[-1]
    if not width or (weight is not None and (weight.is_meta or not weight.is_floating_point())):
        raise ValueError(f"the numbers of its norm, a {kind}, cannot be read")
    like = torch.ones(width) if weight is None else weight

    # Run the norm on numbers whose mean is 0, and on the same numbers with another mean.
    signs = torch.ones(width, dtype=like.dtype, device=like.device)
    signs[1::2] = -1.0
    probe = signs * torch.linspace(1.0, 2.0, width, dtype=like.dtype, device=like.device)
    probe = 8.0 * (probe - probe.mean())
    shift = 0.0 if bias is None else bias
    # The class's own forward, so that no hook of a user is called.
    run = type(module).forward
    try:
        found = (run(module, probe[None])[0] - shift).double()
        moved = (run(module, (probe + 8.0)[None])[0] - shift).double()
    except (RuntimeError, TypeError):
        raise ValueError(f"its norm, a {kind}, cannot be run by itself") from None
    centres = bool((moved - found).norm() <= TOLERANCE * found.norm())

    # The gain is the weight, 1 + weight, or 1: that which explains what the norm returned.
    plain = probe.double() / probe.double().square().mean().sqrt()
    gains = [torch.ones_like(like)] if weight is None else [weight, 1.0 + weight]
    errors = [float((plain * gain.double() - found).norm()) for gain in gains]
    best = min(range(len(gains)), key=errors.__getitem__)
    # Written with `not`, so that NaN is refused, too.
    if not errors[best] <= TOLERANCE * float(found.norm()):
        raise ValueError(f"its norm, a {kind}, does more than centre, divide and multiply")
    return Norm(gains[best], bias, centres)


def _whole(tensor: Any) -> Tensor | None:
    """Return a parameter without its gradient, whole if FSDP shards it."""
    if not isinstance(tensor, Tensor):
        return None
    own = tensor.detach()
    return own.full_tensor() if isinstance(own, DTensor) else own


# ------------------------------------------------------------------------------ around an attention


def find_sides(modules: Modules, attention: nn.Module) -> StreamSides:
    """Return where an attention reads and writes the residual stream.

    Raise a ValueError if that is not known; its sentence continues the name of the attention.
    """
    path = next(path for path, module in modules.items() if module is attention)
    if isinstance(attention, Attend):
        return _sides_in_telescope(modules, path.removesuffix("attend").removesuffix("."))
    *above, name = path.split(".")
    block: Any = modules[".".join(above)]
    stack = _stack_of(modules, path)
    across = name in ACROSS
    if not across:
        before, after, is_post_norm = _norms_of_block(block, name)
        norm = read_norm(before)
        return StreamSides(norm, norm, read_norm(after), is_post_norm, stack, stack)

    # The keys of cross-attention read the encoder's output, behind its last norm.
    before, after, is_post_norm = _norms_of_block(block, name)
    last = _child(_encoder(modules), FINAL_NORMS)
    if not is_post_norm and last is None:
        raise ValueError("reads an encoder whose last norm is not known")
    return StreamSides(
        read_norm(before), read_norm(last), read_norm(after), is_post_norm, stack, "encoder"
    )


def _norms_of_block(block: Any, name: str) -> tuple[Any, Any, bool]:
    """Return the norm before an attention of transformers, the norm after W_O, and whether the
    stream is normalised after the addition.
    """
    children = block._modules
    kind = type(block).__name__
    # A part that nobody knows may scale what the head writes.
    known = {*BEFORE, *AFTER, *OTHERS}
    parts = {each for each, one in children.items() if "Norm" in type(one).__name__}
    parts |= {each for each in children if "scale" in each}
    parts |= {each for each, one in block._parameters.items() if one is not None}
    if parts - known:
        part = min(parts - known)
        raise ValueError(f"is in a {kind} with {part}, and what that does is not known")
    # In Gemma 2, GLM 4 and OLMo 2 a norm comes between W_O and the addition.
    sandwich = "post_feedforward_layernorm" in children
    after = children.get(AFTER[1]) if sandwich else children.get(AFTER[0])
    first = "ln_cross_attn" if name == "crossattention" else None
    for before in (first,) if first else BEFORE:
        if before in children:
            return children[before], after, False
    if sandwich and after is not None:
        return None, after, False
    # T5 has a layer of its own around each attention.
    if name in ("SelfAttention", "EncDecAttention") and "layer_norm" in children:
        return children["layer_norm"], None, False
    # In BART and its relatives the code tells whether the norm comes before or after.
    own = f"{name}_layer_norm"
    if own in children:
        names = unwrap(type(block).forward).__code__.co_names
        is_before = own in names and name in names and names.index(own) < names.index(name)
        is_before = is_before and getattr(block, "do_layer_norm_before", True)
        return (children[own], None, False) if is_before else (None, None, True)
    # BERT has the norm beside its attention, ALBERT inside, DistilBERT in the block.
    inside = (children.get("output"), children.get(name))
    is_bert = any(_child(one, ("LayerNorm",)) is not None for one in inside)
    if is_bert or "sa_layer_norm" in children:
        return None, None, True
    raise ValueError(f"is in a {kind}, and where that normalises the stream is not known")


def _sides_in_telescope(modules: Modules, path: str) -> StreamSides:
    """Return the sides of an attention layer of Telescope, by the path of the layer."""
    where, _, name = path.rpartition(".")
    # A layer that is the whole model reads its input as it is.
    if not path:
        return StreamSides(None, None, None, False, "", "")
    block: Any = modules[where]
    across = name == "cross_attention"
    add_norm = getattr(block, "add_norm_2" if across else "add_norm_1", None)
    if not isinstance(add_norm, AddNorm):
        kind = type(block).__name__
        raise ValueError(f"is in a {kind}, and where that normalises the stream is not known")
    stack = _stack_of(modules, path)
    norm = read_norm(add_norm.norm) if add_norm.pre_norm else None
    if not across:
        return StreamSides(norm, norm, None, not add_norm.pre_norm, stack, stack)
    # Of a decoder by itself, nothing is known of what made the memory.
    model = _above_list(modules, path)
    memory = read_norm(getattr(model, "encoder_norm", None))
    return StreamSides(norm, memory, None, not add_norm.pre_norm, stack, "encoder")


def _stack_of(modules: Modules, path: str) -> str:
    """Return "encoder" or "decoder", if the model has both, for what lies inside of them."""
    parts = path.split(".")
    names = {step for place in modules for step in place.split(".")}
    if not {"encoder", "decoder"} <= names:
        return ""
    return "encoder" if "encoder" in parts else "decoder" if "decoder" in parts else ""


def _above_list(modules: Modules, path: str) -> Any:
    """Return the module that holds the list of layers which an attention is in."""
    parts = path.split(".")
    lists = [
        i for i in range(len(parts)) if isinstance(modules[".".join(parts[:i])], nn.ModuleList)
    ]
    return modules[".".join(parts[: lists[0] - 1])] if lists else modules[""]


def _encoder(modules: Modules) -> Any:
    """Return the encoder of a model of transformers; None if there is none."""
    found = (one for place, one in modules.items() if place.rpartition(".")[2] == "encoder")
    return next(found, None)


def _child(module: Any, names: tuple[str, ...]) -> Any:
    """Return the first child of these names that is there; None if none is."""
    children = {} if module is None else module._modules
    return next((children[name] for name in names if children.get(name) is not None), None)


# ---------------------------------------------------------------- embedding, unembedding, positions


def find_vocabulary(modules: Modules, attention: nn.Module, sides: StreamSides) -> Vocabulary:
    """Return the tokens that an attention may read, and those that it may write.

    Raise a ValueError if the model has no unembedding, or if the attention has no straight way from
    the embedding or to the unembedding; its sentence stands by itself.
    """
    model: Any = modules[""]
    kind = type(model).__name__
    if sides.is_post_norm:
        raise ValueError(
            f"{kind} normalises its stream after every addition, so that no product of weights "
            "leads from the embedding through one head to the unembedding"
        )
    if sides.queries_from == "encoder":
        raise ValueError("a head of the encoder writes into a stream that nothing unembeds")
    path = next(path for path, module in modules.items() if module is attention)
    stack = _above_list(modules, path)
    if isinstance(attention, Attend):
        weight, norm, own, other = _vocabulary_of_telescope(model)
    else:
        weight, norm, own, other = _vocabulary_of_transformers(modules, model, stack)
    embedding = other if sides.keys_from != sides.queries_from else own
    if weight is None:
        raise ValueError(f"{kind} has no unembedding: it predicts no token")
    if embedding is None:
        raise ValueError(f"the encoder of {kind} does not read the tokens that its decoder writes")
    if embedding.shape != weight.shape:
        raise ValueError(
            f"{kind} reads {len(embedding):,} tokens and writes {len(weight):,}: its embedding and "
            "its unembedding have no tokens in common"
        )
    if not (embedding.is_floating_point() and weight.is_floating_point()):
        raise ValueError(f"{kind} keeps its embedding or its unembedding in a packed format")
    return Vocabulary(embedding.detach(), weight.detach(), read_norm(norm))


def _vocabulary_of_telescope(model: Any) -> tuple[Any, Any, Any, Any]:
    """Return the unembedding, the norm before it, and the embeddings of a stack and of the stack it
    reads.
    """
    weight = getattr(model, "head_weight", None)
    own = getattr(model, "target_embedding", None) or getattr(model, "embedding", None)
    other = getattr(model, "embedding", None)
    norm = getattr(model, "decoder_norm", None) or getattr(model, "norm", None)
    # Embeddings of two languages may have the same size, and yet other tokens.
    if own is not other:
        other = None
    return weight, norm, getattr(own, "weight", None), getattr(other, "weight", None)


def _vocabulary_of_transformers(
    modules: Modules, model: Any, stack: Any
) -> tuple[Any, Any, Any, Any]:
    """Return the same of a model of transformers, whose `stack` holds the attention's layers."""
    kind = type(model).__name__
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        return None, None, None, None
    path = next((path for path, one in modules.items() if one is head), "")
    between = [name for name in ("project_out", "layernorm_embedding") if _child(stack, (name,))]
    if path not in HEADS or between:
        what = between[0] if between else path
        raise ValueError(f"{kind} has {what} between its stream and its tokens")
    norm = _child(stack, FINAL_NORMS)
    if norm is None:
        raise ValueError(f"{kind} has no norm that is known before its unembedding")
    # The layers of a picture's encoder have no token embedding beside them.
    own = _child(stack, TOKENS)
    if own is None:
        raise ValueError(f"no token embedding is known beside the layers of this head of {kind}")
    # An encoder of sound or images has no token embedding.
    other = _child(_encoder(modules), TOKENS)
    is_shared = other is not None and other.weight is own.weight
    return head.weight, norm, own.weight, own.weight if is_shared else None


@torch.no_grad()
def find_positions(modules: Modules, attention: nn.Module, sides: StreamSides) -> Tensor:
    """Return the vectors that are added to the embeddings at each position, (position, d_model).

    Raise a ValueError if the model has none; its sentence stands by itself.
    """
    model: Any = modules[""]
    kind = type(model).__name__
    path = next(path for path, module in modules.items() if module is attention)
    if sides.is_post_norm:
        raise ValueError(
            f"{kind} normalises its stream after every addition: position and token cannot be told "
            "apart in it"
        )
    if sides.queries_from != sides.keys_from:
        raise ValueError("queries and keys stand in two sequences, which share no positions")
    stack = _above_list(modules, path)
    if isinstance(attention, Attend):
        prefix = {"encoder": "source_", "decoder": "target_"}.get(sides.queries_from, "")
        table = getattr(model, f"{prefix}positions", None)
        rotary = getattr(modules[path.rpartition(".")[0]], "rotary", None)
    else:
        if _child(stack, ("layernorm_embedding",)) is not None:
            raise ValueError(f"{kind} normalises positions together with tokens")
        table = _child(stack, POSITIONS)
        config = getattr(model, "config", None)
        rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None)
    if isinstance(table, LearnedPositions):
        return table.P.detach()
    if isinstance(table, SinusoidalPositions):
        zeros = torch.zeros(1, model.config.max_positions, table.d_model)
        added: Tensor = table(zeros)
        return added[0]
    if isinstance(table, nn.Embedding):
        # OPT leaves the first two rows unused.
        return table.weight.detach()[getattr(table, "offset", 0) :]
    if rotary is not None:
        raise ValueError(
            f"{kind} has rotary positions: these turn queries and keys by their distance, and "
            "which distance a head prefers depends on what the tokens hold"
        )
    raise ValueError(f"{kind} has no table of positions that is known")
