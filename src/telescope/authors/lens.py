"""`lens`: what each state of the residual stream would say, if the model ended there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import log_softmax

from ..files import frame
from ..traces import PlainTable, PrintedTable, render_text
from .streams import CallColumns, End, Spot, Streams


@dataclass(frozen=True, eq=False)
class Lens(PrintedTable):
    """The next token as each state of the residual stream would have it (the logit lens). Returned
    by `recording.lens`.

    A state goes through the model's last norm, as if no layer came after it, and through its
    unembedding. A row is the state that an attention was given, and the last row is the end.

    Attributes:
        states: the name of each state, from the first to the end.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> with ts.watch(model, keep="steps") as recording:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> seen = recording.lens()
        >>> len(seen.states), len(seen.table()) == len(seen.columns["rank"])
        (3, True)
    """

    after: str
    """The token after which is asked."""
    token: str
    """The token whose probability and rank are followed."""
    states: tuple[str, ...]
    likeliest: tuple[tuple[str, ...], ...]
    """The likeliest tokens of each state, the likeliest first."""
    probability: tuple[float, ...]
    """Of the token."""
    rank: tuple[int, ...]
    """Of the token; 0 is the likeliest."""
    divergence: tuple[float, ...]
    """KL(end ‖ state) in nats."""

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The numbers of the table by the names of its columns: state, likeliest, probability,
        rank, divergence.
        """
        return {
            "state": [*self.states],
            "likeliest": [" ".join(names) for names in self.likeliest],
            "probability": [*self.probability],
            "rank": [*self.rank],
            "kl": [*self.divergence],
        }

    def table(self, *, library: str = "pandas") -> Any:
        """Return a row for each state as a frame of pandas or polars.

        Args:
            library: "pandas" or "polars".
        """
        return frame(self.columns, library)

    def __rich__(self) -> PlainTable:
        title = f'after "{self.after}", the token "{self.token}"'
        table = PlainTable(box=None, pad_edge=False, title=title, title_justify="left")
        for name in self.columns:
            right = name not in ("state", "likeliest")
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        for state, likeliest, probability, rank, kl in zip(*self.columns.values(), strict=True):
            table.add_row(state, likeliest, f"{probability:.4f}", str(rank), f"{kl:.3f}")
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def read_states(
    streams: Streams,
    calls: Sequence[tuple[str, CallColumns, int]],
    choose: Callable[[Float[Tensor, " vocabulary"]], int],
    name_of: Callable[[int], str],
    after: str,
    top: int,
) -> Lens:
    """Return what the states before some attentions, and the end, say of the next token.

    calls   the name of each state, the call of its attention, and the column of the query
    choose  from the logits of the end, the token to follow
    """
    end: End = streams.end(*calls[-1][1:])
    rows: list[tuple[str, Tensor]] = []
    with streams.reading():
        for label, call, column in calls:
            spot = streams.query(call, column)
            rows.append((f"before {label}", _as_end(streams, spot, end)))
        rows.append(("end", end.spot.vector()))
        logits = [_logits(end, state) for _, state in rows]
    logs = log_softmax(torch.stack(logits), -1)
    last = logs[-1]
    token = choose(logits[-1])
    found = logs.topk(min(top, logs.shape[-1])).indices.tolist()
    return Lens(
        after,
        name_of(token),
        tuple(name for name, _ in rows),
        tuple(tuple(map(name_of, row)) for row in found),
        tuple(logs[:, token].exp().tolist()),
        tuple((logs > logs[:, [token]]).sum(-1).tolist()),
        tuple((last.exp() * (last - logs)).sum(-1).clamp(min=0).tolist()),
    )


def _as_end(streams: Streams, spot: Spot, end: End) -> Tensor:
    """Return a state of the stream as the last norm would have it; a state of a model without a
    last norm as it is.
    """
    state = spot.followed.stream_before(spot.state)
    x = spot.followed.read(state, [spot.row])[0]
    last = end.spot.state
    event = spot.followed.noted.events[last.event]
    # In a model that normalises every sum, the last norm is a part of the last layer.
    if not last.is_output or state.is_output:
        return x
    module = streams.modules[event.path]
    normed: Tensor = module(x.to(spot.followed.dtype)[None, None])[0, 0]
    return normed.double()


def _logits(end: End, state: Tensor) -> Float[Tensor, " vocabulary"]:
    weight = end.weight.detach()
    logits = (weight @ (end.factor * state).to(weight)).double()
    return logits if end.bias is None else logits + end.bias.detach().double().flatten()
