"""Forwards that call torch's attention themselves, as libraries of fast kernels put into models, and three ways in."""

from contextlib import contextmanager
from types import MethodType

import torch
from torch.nn.functional import scaled_dot_product_attention

from support.huggingface import transformers
from telescope.layers import CachePosition
from telescope.layers.attend import join_heads

WAYS = ("subclass", "instance", "class")


def llama(self, hidden_states, position_embeddings, attention_mask=None, **options):
    rotate = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    queries, keys, values = (
        heads(one(hidden_states), self.head_dim) for one in (self.q_proj, self.k_proj, self.v_proj)
    )
    queries, keys = rotate(queries, keys, *position_embeddings)
    return self.o_proj(attend(queries, keys, values, attention_mask, causal=True)), None


def gpt2(self, hidden_states, past_key_values=None, attention_mask=None, **options):
    parts = self.c_attn(hidden_states).split(self.split_size, dim=2)
    return self.c_proj(attend(*(heads(part, self.head_dim) for part in parts), attention_mask, causal=True)), None


def bert(self, hidden_states, attention_mask=None, **options):
    parts = (one(hidden_states) for one in (self.query, self.key, self.value))
    return attend(*(heads(part, self.attention_head_size) for part in parts), attention_mask, causal=False), None


def bart(self, hidden_states, key_value_states=None, past_key_values=None, attention_mask=None, **options):
    memory = hidden_states if key_value_states is None else key_value_states
    parts = (self.q_proj(hidden_states), self.k_proj(memory), self.v_proj(memory))
    causal = self.is_causal and key_value_states is None
    return self.out_proj(attend(*(heads(part, self.head_dim) for part in parts), attention_mask, causal=causal)), None


def telescope(self, x, memory=None, mask=None, *, at=CachePosition(), cache=None):
    """Multi-head attention of Telescope, causal, without its `Attend`."""
    queries, keys, values = self._project_all(x, at)
    return self.W_O(join_heads(scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)))


FORWARDS = {"llama": llama, "gpt2": gpt2, "bert": bert, "bart": bart}


def heads(features, width):
    return features.view(*features.shape[:-1], -1, width).transpose(1, 2)


def attend(queries, keys, values, mask, *, causal):
    """Return the context, (batch, query, features)."""
    alone = causal and mask is None
    context = scaled_dot_product_attention(queries, keys, values, mask, is_causal=alone, enable_gqa=True)
    return context.transpose(1, 2).flatten(2)


@contextmanager
def bypassed(module, forward, way):
    """Let one module run this forward: as one of a subclass, put into the instance, or patched into its class."""
    kind = type(module)
    own = kind.forward
    if way == "subclass":
        module.__class__ = type(f"Fast{kind.__name__}", (kind,), {"forward": forward})
    elif way == "instance":
        module.forward = MethodType(forward, module)
    else:
        kind.forward = lambda self, *args, **options: (forward if self is module else own)(self, *args, **options)
    try:
        yield
    finally:
        module.__class__ = kind
        module.__dict__.pop("forward", None)
        kind.forward = own


@contextmanager
def without_head(model, name, head):
    """Mute a head by hand: set the columns of the output projection that read its context to zero."""
    attention = model.get_submodule(name)
    if hasattr(attention, "query"):  # BERT projects beside the attention
        weight = model.get_submodule(name.rpartition(".")[0]).output.dense.weight
        width = attention.attention_head_size
    elif hasattr(attention, "c_proj"):
        weight = attention.c_proj.weight.mT
        width = attention.head_dim
    elif hasattr(attention, "W_O"):
        weight = attention.W_O.weight
        width = attention.d_v
    else:
        projection = attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj
        weight = projection.weight
        width = attention.head_dim
    columns = slice(head * width, (head + 1) * width)
    before = weight[:, columns].clone()
    with torch.no_grad():
        weight[:, columns] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            weight[:, columns] = before
