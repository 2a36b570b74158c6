"""Multi-head attention: several perspectives at once, within a sequence or from one sequence on another."""

from jaxtyping import Float
from torch import Tensor, nn

from ..attention import Attention, Mask
from ..attention.positions import Rotary
from . import check
from .attend import Attend
from .heads import join_heads, split_heads


class MultiHeadAttention(nn.Module):
    """Y = [Y_1 … Y_T] W_O, Y_s = softmax(Q_s K_sᵀ / √d_k) V_s, with Q_s = X W_q, K_s = M W_k, V_s = M W_v of head s.

    The memory M is X itself (self-attention), or another sequence of width d_memory (encoder-decoder attention).
    d_k is d_model / heads, and d_v is d_k, unless given. Fewer key_heads are grouped queries: each serves heads /
    key_heads of the queries' heads. `rotary` turns the queries and keys of self-attention by their positions.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        key_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        d_memory: int | None = None,
        d_out: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        attention: Attention = Attention(),
        rotary: Rotary | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check.sizes(d_model=d_model, heads=heads, key_heads=key_heads, d_k=d_k, d_v=d_v, d_memory=d_memory, d_out=d_out)
        self.d_model = d_model
        self.heads = heads
        self.key_heads = heads if key_heads is None else key_heads
        self.d_k = check.per_head(d_model, heads) if d_k is None else d_k
        self.d_v = self.d_k if d_v is None else d_v
        self.d_memory = d_model if d_memory is None else d_memory
        self.d_out = d_model if d_out is None else d_out
        if heads % self.key_heads:
            divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise ValueError(f"key_heads={key_heads} does not divide heads={heads}; these do: {divisors}")

        self.attention = attention
        self.rotary = rotary
        self.W_q = nn.Linear(d_model, heads * self.d_k, bias)
        self.W_k = nn.Linear(self.d_memory, self.key_heads * self.d_k, bias)
        self.W_v = nn.Linear(self.d_memory, self.key_heads * self.d_v, bias)
        self.W_O = nn.Linear(heads * self.d_v, self.d_out, bias if out_bias is None else out_bias)
        self.attend = Attend(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        memory: Float[Tensor, "batch key d_memory"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch query d_out"]:
        """Every x looks at the memory or, without one, at every x. `mask` is for this call, beside the definition's."""
        self._check(memory)
        queries = self.queries(x)
        keys, values = self.keys_and_values(x if memory is None else memory)
        context: Tensor = self.attend(queries, keys, values, self.attention.seeing(mask))
        y: Tensor = self.W_O(join_heads(context))
        return y

    def queries(
        self, x: Float[Tensor, "batch query d_model"], start: int = 0
    ) -> Float[Tensor, "batch heads query d_k"]:
        """X W_q, head by head; the first stands at position `start`."""
        check.features(self, "x", x, "d_model")
        return self._turn(split_heads(self.W_q(x), self.heads), start)

    def keys_and_values(
        self, memory: Float[Tensor, "batch key d_memory"], start: int = 0
    ) -> tuple[Float[Tensor, "batch key_heads key d_k"], Float[Tensor, "batch key_heads key d_v"]]:
        """M W_k and M W_v, head by head: all that later queries need of a memory, so it can be kept."""
        check.features(self, "memory", memory, "d_memory")
        keys, values = split_heads(self.W_k(memory), self.key_heads), split_heads(self.W_v(memory), self.key_heads)
        return self._turn(keys, start), values

    def _turn(self, features: Tensor, start: int) -> Tensor:
        return features if self.rotary is None else self.rotary(features, start)

    def _check(self, memory: Tensor | None) -> None:
        if memory is None and self.d_memory != self.d_model:
            raise ValueError(
                f"memory is missing: a layer with d_model={self.d_model} and d_memory={self.d_memory} "
                "attends to another sequence, layer(x, memory)"
            )
        if memory is not None and self.rotary is not None:
            raise ValueError(
                "memory is another sequence, so there is no distance for rotary to turn by; "
                "build the layer with rotary=None, or leave the memory out"
            )
