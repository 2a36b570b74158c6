"""`effect`: run a model with each of many edits, and tabulate what changed.

Edits that change sequences independently of each other run together: the inputs are repeated, and
each edit concerns its own copy. Frozen and redefining edits run one at a time, and so do all edits
of a model whose attentions have other rows than the inputs.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from ..files import frame
from ..recording import list_names
from ..traces import render_text
from ..words import hint
from .call_edits import SequencesHiddenError
from .edit import editing
from .edits import Edit, Needs
from .estimated_effects import VERIFY, Drops, Verify, check_how, recall_of, verified_columns
from .estimates import estimate
from .measured import (
    check_rivals,
    divergence,
    find_logits,
    last_places,
    logits_of,
    mean_difference,
    token_loss,
)
from .model_inputs import ModelInputs

TOKENS = 8192  # of the inputs of one batch, at most, unless one edit takes more
MAX_EDITS = 32  # of one batch
# Tokens beyond which edits run one at a time: masks that differ by sequence are slower than one.
LONG = 2048
MEASURES = ("logits", "loss")  # measures by name; others are functions of the model's output

Measure = Callable[[Any], float | Mapping[str, float]]
"""From the output of the model, edited, to a number or several by name."""


@dataclass(frozen=True)
class Effects:
    """A table with one row for each edit, and one for the model as it is. Returned by `ts.effect`.

    `columns` maps the name of each column to its numbers, as the constructor of a pandas frame
    takes it. The first column, "edit", holds the edits themselves, with None for the model as it
    is, in the first row.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> effects = ts.effect(model, torch.tensor([[1, 2, 3]]), ts.mute.each(model))
        >>> len(effects), list(effects.columns)
        (3, ['edit', 'kl'])
    """

    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.columns["edit"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row, as a mapping from the names of the columns."""
        return [
            {name: column[i] for name, column in self.columns.items()} for i in range(len(self))
        ]

    def table(self, *, library: str = "pandas") -> Any:
        """Return the table as a frame of pandas or polars; edits are sentences, and "as it is" the
        model unedited.
        """
        edits = ["as it is" if edit is None else str(edit) for edit in self.columns["edit"]]
        return frame(self.columns | {"edit": edits}, library)

    def sort(self, column: str, *, descending: bool = True) -> "Effects":
        """Return the table with its edits in the order of a column; the model as it is stays
        first.
        """
        if column not in self.columns:
            raise ValueError(f'there is no column "{column}"; {hint(column, self.columns)}')
        # A number that is not known, NaN, comes last either way.
        values = self.columns[column]
        known = [i for i in range(1, len(self)) if values[i] == values[i]]
        order = sorted(known, key=lambda i: values[i], reverse=descending)
        order += [i for i in range(1, len(self)) if values[i] != values[i]]
        return Effects(
            {name: [values[i] for i in (0, *order)] for name, values in self.columns.items()}
        )

    def recall(self, top: int = 10, among: int = 20) -> float:
        """Return which share of the `top` exactly largest effects, in absolute value, is `among`
        the largest estimates of `how="gradient"`; every edit has to be verified.
        """
        return recall_of(self.columns, top, among)

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in self.columns:
            side: Any = "left" if name == "edit" else "right"
            table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
        for row in self.rows:
            edit, *numbers = row.values()
            cells = [_cell(one) for one in numbers]
            table.add_row("as it is" if edit is None else str(edit), *cells)
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def _cell(number: float) -> str:
    if number != number:
        return "-"  # was not run
    return str(number) if isinstance(number, int) else f"{number:.4g}"


def effect(
    model: nn.Module,
    inputs: Any,
    edits: Iterable[Edit | Sequence[Edit]],
    measure: str | Measure = "logits",
    *,
    tokens: Sequence[int] = (),
    against: Sequence[int] = (),
    labels: Tensor | None = None,
    how: str = "exact",
    verify: Verify = VERIFY,
    drops: Drops = 0,
    tokenizer: Any = None,
    progress: bool | None = None,
) -> Effects:
    """Run a model with each edit, and return a table of what changed; or estimate that of all edits
    by one gradient, and run the edits with the largest estimates.

    Args:
        model: a model that `ts.edit` takes.
        inputs: what the model is called with: a tensor of token ids (batch, n), a tuple of
            arguments, a mapping of keyword arguments, or a text, for a model with a tokenizer.
        edits: one for each row; a list of several counts as one, and they are applied together.
        measure: "logits": column "kl", the divergence of the next token's distribution from that of
            the model as it is, in nats, KL(as it is ‖ edited), the mean over the positions that are
            no padding; with `tokens`, for each of them its probability and rank (0 is the
            likeliest) after the last position, the mean over the batch. "loss": column "loss", the
            mean cross-entropy of the next token, or of `labels`, in nats. A function of the model's
            output: a number, in the column "value", or several by name.
        tokens: the ids of the tokens whose probability and rank are tabulated.
        against: as many ids: a rival of each token. Column "difference": the logit of a token less
            that of its rival after the last position, the mean over the pairs and the batch.
        labels: (batch, n) what each position should predict, -100 for positions that do not count;
            None for the input ids themselves, one position on.
        how: "exact" runs the model with each edit. "gradient" runs it once as it is, and a backward
            pass: the effect of an edit is estimated as Σ dO · (O' - O), over the contexts O that
            it changes, with dO the derivative of the measure by O, and O' what the edit makes of O
            in this run; layers above are taken to be linear. It knows ts.mute, ts.hide and
            ts.boost, needs a model in evaluation mode, and a measure that can be differentiated:
            "loss", `tokens` with `against`, one of `tokens` alone, its probability, or a function
            that returns a tensor. The column of the measure holds estimates, in place of exact
            values; column "exact" has the value of those that were run, and NaN for others, and
            column "verified" tells which these are.
        verify: how many of the largest estimates, in absolute value, are run exactly, or "all".
        drops: of how many blocks the gradient is dropped, each in a backward pass of its own
            (GradDrop, Kramár et al., 2024), or "all": the mean size of these estimates, with the
            sign of the whole gradient's, finds effects whose direct and indirect parts cancel.
        tokenizer: for edits that name text, and for inputs that are text.
        progress: whether to show a progress bar; None shows one in a terminal.

    Returns:
        The table; its first row is the model as it is.

    Raises:
        TypeError, ValueError: as `ts.edit`; or the model returns no logits, and `measure` needs
            them; or the measure or an edit has no gradient.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> table = ts.effect(model, torch.tensor([[1, 2, 3]]), [ts.mute(), ts.hide(0)], "loss")
        >>> [str(edit) for edit in table.columns["edit"]]
        ['None', 'mute every head in every layer', 'hide key 0 from every query in every layer']
    """
    if isinstance(measure, str) and measure not in MEASURES:
        raise ValueError(
            f'there is no measure "{measure}"; {hint(measure, MEASURES)}, or a function of the '
            "output"
        )
    check_how(how, verify, drops)
    check_rivals(tokens, against)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    call = ModelInputs.of(model, inputs, tokenizer)
    listed = [tuple(one) if isinstance(one, Sequence) else (one,) for one in edits]
    run = Runs(
        model,
        call,
        tokenizer,
        _measure(measure, call, tokens, against, labels),
        isinstance(measure, str),
    )

    def run_each(chosen: Sequence[tuple[Edit, ...]]) -> list[dict[str, float]]:
        """Run the model as it is, for its row or to be compared with, and with each edit."""
        rows: list[dict[str, float]] = [run.plain()]
        show = sys.stderr.isatty() if progress is None else progress
        with Progress(console=Console(file=sys.stderr), transient=True, disable=not show) as bar:
            task = bar.add_task("edits", total=len(chosen))
            for batch in _batches(chosen, call):
                rows += run.edited(batch)
                bar.update(task, advance=len(batch))
        return rows

    if how == "exact":
        rows = run_each(listed)
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]}
    else:
        name, value = _differentiable(measure, call, tokens, against, labels)
        found = estimate(model, call, listed, tokenizer, value, drops)
        columns = verified_columns(found, listed, name, verify, lambda some: run_each(some)[1:])
        run.idle = found.idle
    if run.idle:
        warnings.warn(
            f"{len(run.idle)} of the edits changed nothing, since no attention that they name was "
            f"called while the model ran: {list_names([*map(str, run.idle)])}; pass inputs that "
            "reach these attentions, or restore the forward of the modules around them",
            stacklevel=2,
        )
    named: list[Any] = [None, *(one[0] if len(one) == 1 else one for one in listed)]
    return Effects({"edit": named} | columns)


def _batches(edits: Sequence[tuple[Edit, ...]], call: ModelInputs) -> list[list[tuple[Edit, ...]]]:
    """Return the edits in groups that run together."""
    together = max(1, min(MAX_EDITS, TOKENS // max(call.batch * call.longest, 1)))
    if not call.can_repeat or call.longest > LONG:
        together = 1
    batches: list[list[tuple[Edit, ...]]] = []
    room = 0  # for more edits in the last batch
    for several in edits:
        alone = any(Needs.WHOLE_BATCH in one.needs for one in several)
        if room and not alone:
            batches[-1].append(several)
            room -= 1
        else:
            batches.append([several])
            room = 0 if alone else together - 1  # nothing joins an edit of the whole batch
    return batches


@dataclass(eq=False)
class Runs:
    """Run a model as it is and edited, and measure what it returns."""

    model: nn.Module
    call: ModelInputs
    tokenizer: Any
    measure: Callable[..., dict[str, float]]
    reads_logits: bool = False
    """Whether `measure` reads nothing but the logits."""
    can_divide: bool = True
    """Whether the model's output can be divided into those of several edits, as far as is known."""
    reference: Any = None
    real: Tensor | None = None
    """At which positions a prediction counts; None if at all."""
    idle: list[Edit] = field(default_factory=list)
    """The edits whose attentions were not called."""

    @torch.no_grad()
    def plain(self) -> dict[str, float]:
        """Run the model as it is, and note which of its tokens are padding."""
        args, kwargs = self.call.repeated(1)
        with editing(self.model, (), self.tokenizer, notes_tokens=True) as session:
            self.reference = self.model(*args, **kwargs)
        logits = find_logits(self.reference)
        if logits is not None and logits.ndim == 3:
            self.real = session.text.real_predictions(*logits.shape[:2])
        return self.measure(self.reference, self.reference, self.real)

    @torch.no_grad()
    def edited(self, batch: Sequence[tuple[Edit, ...]]) -> list[dict[str, float]]:
        """Run the model once for several edits, each on its own copy of the inputs; once for each
        where that cannot be divided.
        """
        if self.can_divide or len(batch) == 1:
            try:
                return self._run(batch)
            except (SequencesHiddenError, IndivisibleError):
                self.can_divide = False
        return [row for several in batch for row in self._run([several])]

    def _run(self, batch: Sequence[tuple[Edit, ...]]) -> list[dict[str, float]]:
        size = self.call.batch  # sequences of one copy of the inputs
        count = len(batch)
        args, kwargs = self.call.repeated(count)
        edits = [one for several in batch for one in several]
        own = [range(i * size, (i + 1) * size) for i, several in enumerate(batch) for _ in several]
        with editing(self.model, edits, self.tokenizer, own if count > 1 else None) as session:
            output = self.model(*args, **kwargs)
        logits = find_logits(output) if self.reads_logits else None
        output = output if logits is None else logits
        parts = [_part(output, i * size, size, count * size) for i in range(count)]
        self.idle += session.idle_edits()
        return [self.measure(part, self.reference, self.real) for part in parts]


class IndivisibleError(Exception):
    """A model's output holds a number of all sequences together, such as a mean loss."""


def _part(output: Any, start: int, size: int, whole: int) -> Any:
    """Return the part of a model's output that belongs to some sequences of the batch."""
    if size == whole:
        return output  # of the only edit that ran
    if isinstance(output, Tensor):
        if output.ndim and len(output) == whole:
            return output[start : start + size]
        if output.is_floating_point():
            raise IndivisibleError
        return output
    if isinstance(output, Mapping):
        parts = {name: _part(value, start, size, whole) for name, value in output.items()}
        kind: Any = type(output)  # transformers' ModelOutput takes fields, a dict a mapping
        return kind(**parts) if hasattr(output, "logits") or "logits" in parts else kind(parts)
    if isinstance(output, tuple | list):
        return type(output)([_part(value, start, size, whole) for value in output])
    return output  # settings, and whatever else has no axis of sequences


# ----------------------------------------------------------------------------------------- measures


def _measure(
    measure: str | Measure,
    call: ModelInputs,
    tokens: Sequence[int],
    against: Sequence[int],
    labels: Tensor | None,
) -> Callable[..., dict[str, float]]:
    """Return the function (output, output of the model as it is, positions that count) ->
    columns.
    """

    def columns(output: Any, reference: Any, real: Tensor | None) -> dict[str, float]:
        if measure == "loss":
            return {"loss": float(_loss(logits_of(output), call, labels, real))}
        if isinstance(measure, str):
            return _compare_logits(logits_of(output), logits_of(reference), tokens, against, real)
        value = measure(output)
        named = value if isinstance(value, Mapping) else {"value": value}
        return {str(name): float(number) for name, number in named.items()}

    return columns


def _differentiable(
    measure: str | Measure,
    call: ModelInputs,
    tokens: Sequence[int],
    against: Sequence[int],
    labels: Tensor | None,
) -> tuple[str, Callable[..., Tensor]]:
    """Return the column of a measure that can be differentiated, and the function (output, which
    predictions count) -> its value.
    """
    if not isinstance(measure, str):
        of_output: Any = measure
        return "value", lambda output, real_predictions: of_output(output)
    if measure == "logits" and not against and len(tokens) != 1:
        known = (
            "several tokens have several probabilities"
            if tokens
            else ("the divergence of the model from itself is at its least, where it has no slope")
        )
        raise ValueError(
            f'measure="logits" with how="gradient": {known}; give tokens=[one] for its '
            'probability, tokens= with against= for a difference of logits, or measure="loss"'
        )

    def value(output: Any, real_predictions: Callable[[int, int], Tensor | None]) -> Tensor:
        logits = find_logits(output)
        real = None
        if logits is not None and logits.ndim == 3:
            real = real_predictions(*logits.shape[:2])
        if measure == "loss":
            return _loss(logits_of(output), call, labels, real)
        last = last_places(logits_of(output), real)
        if against:
            return mean_difference(last, tokens, against)
        return last.softmax(-1)[:, tokens[0]].mean()

    if measure == "loss":
        return "loss", value
    return ("difference" if against else f"p({tokens[0]})"), value


def _loss(logits: Tensor, call: ModelInputs, labels: Tensor | None, real: Tensor | None) -> Tensor:
    labels = call.labels if labels is None else labels
    if labels is None:
        if call.ids is None:
            raise ValueError(
                "the inputs hold no token ids; give labels=, what each position should predict"
            )
        labels = call.ids.roll(-1, 1).clone()  # each position predicts the token after it
        labels[:, -1] = -100  # the label that cross_entropy ignores
        if real is not None:  # neither the query nor the token that it predicts is padding
            own = real.to(labels.device)
            labels[~(own & own.roll(-1, 1))] = -100
    return token_loss(logits, labels)


def _compare_logits(
    logits: Tensor,
    reference: Tensor,
    tokens: Sequence[int],
    against: Sequence[int],
    real: Bool[Tensor, "batch n"] | None,
) -> dict[str, float]:
    now = log_softmax(logits, -1)
    divergences = divergence(log_softmax(reference, -1), now)
    last = last_places(now, real)
    if real is not None:
        divergences = divergences[
            real.to(divergences.device)
        ]  # of the positions that are no padding
    # Rounding may leave the divergence of equal distributions below 0.
    columns: dict[str, float] = {"kl": float(divergences.mean().clamp(min=0.0))}
    for token in tokens:
        own = last[:, token]
        columns[f"p({token})"] = float(own.exp().mean())
        columns[f"rank({token})"] = float((last > own[:, None]).sum(-1).float().mean())
    if against:
        difference = mean_difference(last_places(logits, real), tokens, against)
        columns["difference"] = float(difference)
    return columns
