"""The feed-forward network: what each position makes of its context, by itself."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from . import check

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "silu": silu,
}


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2  (Vaswani et al. 2017, section 3.3).

    `dropout` is on the hidden layer.
    """

    def __init__(
        self, d_model: int, d_hidden: int, *, activation: str = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check.sizes(d_model=d_model, d_hidden=d_hidden)
        check.one_of("activation", activation, ACTIVATIONS)
        self.d_model = d_model
        self.activation = activation
        self.W_1 = nn.Linear(d_model, d_hidden, bias)
        self.W_2 = nn.Linear(d_hidden, d_model, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_model"]:
        check.features(self, "x", x, "d_model")
        hidden = self.hidden(x)
        y: Tensor = self.W_2(self.dropout(hidden) if self.training else hidden)
        return y

    def hidden(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_hidden"]:
        return ACTIVATIONS[self.activation](self.W_1(x))


class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W_1) ⊙ x W_3) W_2, Llama's with SiLU  (Shazeer 2020)."""

    def __init__(
        self, d_model: int, d_hidden: int, *, activation: str = "silu", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(d_model, d_hidden, activation=activation, bias=bias, dropout=dropout)
        self.W_3 = nn.Linear(d_model, d_hidden, bias)

    def hidden(self, x: Float[Tensor, "batch n d_model"]) -> Float[Tensor, "batch n d_hidden"]:
        gated: Tensor = super().hidden(x) * self.W_3(x)
        return gated
