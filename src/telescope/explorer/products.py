"""Answers about one number of a query, key or value: a row of x times a column of a matrix."""

from dataclasses import dataclass

import torch

from ..layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from .answers import Answer, Vector, not_kept
from .run import RunRequest

MATRICES = {"q": "W_q", "k": "W_k", "v": "W_v"}


@dataclass(frozen=True)
class ProductAnswer(Answer):
    """One number of a query, key or value as products.

    of      "q", "k" or "v"; at: the query or key; m: the feature
    matrix  "W_q", "W_k" or "W_v"
    normed  whether x was normalised before the matrix
    row     what the matrix reads, x; column: of the matrix
    sum     of all products and the bias
    turned  whether rotary positions change the number after that
    number  as the head has it
    """

    exact = True
    l: int
    h: int
    of: str
    at: int
    m: int
    token: str
    matrix: str
    normed: bool
    row: Vector
    column: Vector
    bias: float | None
    sum: float
    turned: bool
    number: float


@torch.no_grad()
def product(request: RunRequest) -> ProductAnswer:
    """Answer the row of x and the column of a matrix whose products sum to one number of a
    query, a key or a value.
    """
    view = request.view
    of = request.word("of", tuple(MATRICES))
    view.require("trace")
    block = view.block
    if not isinstance(block, EncoderBlock | DecoderBlock):
        raise not_kept(
            "the matrices are known of models of Telescope that run here, not of recordings"
        )
    is_cross = view.kind == "cross"
    attention = getattr(block, "cross_attention" if is_cross else "self_attention")
    if not isinstance(attention, MultiHeadAttention):
        raise not_kept(f"a {type(attention).__name__} has other matrices than W_q, W_k and W_v")
    if is_cross and of != "q":
        raise not_kept(
            "keys and values of an encoder\u2013decoder attention are made from the output of the "
            "encoder, which is not kept"
        )
    view.require("geometry")
    one = request.one
    recorded = {"q": one.queries, "k": one.keys, "v": one.values}[of]
    if recorded is None:
        raise not_kept("the values of this attention were not kept")

    # The number that is asked for.
    at = request.i if of == "q" else request.index("j", view.size[1], "key")
    m = request.index("m", recorded.shape[-1], "feature")

    # Several query heads may share the matrices of one key head.
    head = request.h
    if of != "q":
        head = head * attention.key_heads // attention.heads
    weight, bias = attention.projections()[MATRICES[of]]
    column = weight[head * recorded.shape[-1] + m]
    norm = block.add_norm_2 if is_cross else block.add_norm_1
    x = view.call.before[request.b, view.row_of(at) if of == "q" else at]
    row = norm.norm(x) if norm.pre_norm else x
    added = None if bias is None else float(bias[head * recorded.shape[-1] + m])
    return ProductAnswer(
        l=request.layer,
        h=request.h,
        of=of,
        at=at,
        m=m,
        token=view.tokens("q" if of == "q" else "k", request.b, [at])[0],
        matrix=MATRICES[of],
        normed=norm.pre_norm,
        row=row,
        column=column,
        bias=added,
        sum=float(row.double() @ column.double()) + (added or 0.0),
        turned=of != "v" and attention.rotary is not None,
        number=float(recorded[0, 0, at, m]),
    )
