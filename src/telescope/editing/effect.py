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
from jaxtyping import Bool, Float
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from ..files import frame
from ..recording import list_names
from ..traces import render_text
from ..words import hint
from .call_edits import SequencesHiddenError
from .edit import editing
from .edits import Edit, Needs
from .model_inputs import ModelInputs
from .predictions import divergence
from .restored import RUNS, are_alike, check_measure, with_restored

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
    is, in the first row, and "corrupted" for the corrupted inputs, in the second.

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
        """Return the table with its edits in the order of a column; rows without edits stay
        first.
        """
        if column not in self.columns:
            raise ValueError(f'there is no column "{column}"; {hint(column, self.columns)}')
        plain = [i for i, one in enumerate(self.columns["edit"]) if one in (None, "corrupted")]
        edited = [i for i in range(len(self)) if i not in plain]
        order = sorted(edited, key=lambda i: self.columns[column][i], reverse=descending)
        return Effects(
            {name: [values[i] for i in (*plain, *order)] for name, values in self.columns.items()}
        )

    def __rich__(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in self.columns:
            side: Any = "left" if name == "edit" else "right"
            table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
        for row in self.rows:
            edit, *numbers = row.values()
            cells = [str(one) if isinstance(one, int) else f"{one:.4g}" for one in numbers]
            table.add_row("as it is" if edit is None else str(edit), *cells)
        return table

    def __repr__(self) -> str:
        return render_text(self.__rich__())


def effect(
    model: nn.Module,
    inputs: Any,
    edits: Iterable[Edit | Sequence[Edit]],
    measure: str | Measure = "logits",
    *,
    tokens: Sequence[int] = (),
    against: int | None = None,
    labels: Tensor | None = None,
    corrupted: Any = None,
    run: str = "corrupted",
    tokenizer: Any = None,
    progress: bool | None = None,
) -> Effects:
    """Run a model with each edit, and return a table of what changed.

    With `corrupted`, each row also says how much of what lies between two inputs is restored, as
    in activation patching: (value - corrupted) / (clean - corrupted), which is 1 for `inputs` and
    0 for `corrupted`. `ts.patch.each` makes the edits.

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
        against: the id of a rival of the only one of `tokens`: column "difference", the logit of
            the token minus that of the rival after the last position, the mean over the batch.
        labels: (batch, n) what each position should predict, -100 for positions that do not count;
            None for the input ids themselves, one position on; with `corrupted` those of `inputs`
            in every row.
        corrupted: other inputs, such as a sentence with one word changed. The second row is the
            model as it is on them, and the column "restored" is of the difference; without
            `against`, of the probability of the first of `tokens`; without these, of "kl"; of
            "loss", or of the value of the function, "restored(name)" of several.
        run: which inputs run with the edits: "corrupted", patched from a recording of `inputs`
            (denoising), or "clean", patched from a recording of `corrupted` (noising).
        tokenizer: for edits that name text, and for inputs that are text.
        progress: whether to show a progress bar; None shows one in a terminal.

    Returns:
        The table; its first row is the model as it is.

    Raises:
        TypeError, ValueError: as `ts.edit`; or the model returns no logits, and `measure` needs
        them; a token is not in the vocabulary; or the measure is the same for both inputs.

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
    if run not in RUNS:
        raise ValueError(f'there is no run="{run}"; {hint(str(run), RUNS)}')
    if against is not None and (measure != "logits" or len(tokens) != 1):
        raise ValueError(
            f"against={against} is the rival of one token; give tokens=[...] with one id, and "
            'leave measure= out, or measure="logits"'
        )
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    call = ModelInputs.of(model, inputs, tokenizer)
    listed = [tuple(one) if isinstance(one, Sequence) else (one,) for one in edits]
    measured = _measure(measure, call, tokens, labels, against)
    clean = Runs(model, call, tokenizer, measured, isinstance(measure, str))
    clean.run_plain()
    runs = [clean]
    if corrupted is not None:
        other = ModelInputs.of(model, corrupted, tokenizer)
        runs.append(Runs(model, other, tokenizer, measured, isinstance(measure, str)))
        runs[1].run_plain()
    named: list[Any] = [None, "corrupted"][: len(runs)]
    # What each row is compared with: the clean output, where positions can be compared.
    restores = _restored_column(measure, tokens, against)
    if corrupted is not None:
        logits = [_find_logits(one.plain) for one in runs]
        alike = are_alike(logits[0], logits[1], [one.real for one in runs])
        check_measure(restores, alike, labels)
        for one in runs:
            one.reference = clean.plain if alike else None
    rows: list[dict[str, float]] = [one.measure_plain() for one in runs]
    edited = runs[-1] if run == "corrupted" else clean
    batches = _batches(listed, edited.call)
    show = sys.stderr.isatty() if progress is None else progress
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not show) as bar:
        task = bar.add_task("edits", total=len(listed))
        for batch in batches:
            rows += edited.edited(batch)
            bar.update(task, advance=len(batch))
    if edited.idle:
        warnings.warn(
            f"{len(edited.idle)} of the edits changed nothing, since no attention that they name "
            f"was called while the model ran: {list_names([*map(str, edited.idle)])}; pass inputs "
            "that reach these attentions, or restore the forward of the modules around them",
            stacklevel=2,
        )
    named += [one[0] if len(one) == 1 else one for one in listed]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if corrupted is not None:
        columns = with_restored(columns, [restores] if restores in columns else [*columns])
    return Effects({"edit": named} | columns)


def _batches(edits: list[tuple[Edit, ...]], call: ModelInputs) -> list[list[tuple[Edit, ...]]]:
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
    plain: Any = None
    """What the model returns as it is."""
    reference: Any = None
    """The output that others are compared with; None if their positions cannot be compared."""
    real: Tensor | None = None
    """At which positions a prediction counts; None if at all."""
    idle: list[Edit] = field(default_factory=list)
    """The edits whose attentions were not called."""

    @torch.no_grad()
    def run_plain(self) -> None:
        """Run the model as it is, and note which of its tokens are padding."""
        args, kwargs = self.call.repeated(1)
        with editing(self.model, (), self.tokenizer, notes_tokens=True) as session:
            self.plain = self.reference = self.model(*args, **kwargs)
        logits = _find_logits(self.plain)
        if logits is not None and logits.ndim == 3:
            self.real = session.text.real_predictions(*logits.shape[:2])

    def measure_plain(self) -> dict[str, float]:
        """Return the row of the model as it is."""
        return self.measure(self.plain, self.reference, self.real)

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
        logits = _find_logits(output) if self.reads_logits else None
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


def _restored_column(measure: str | Measure, tokens: Sequence[int], against: int | None) -> str:
    """Return the column whose restored part is told; "" for the columns of a function."""
    if not isinstance(measure, str):
        return ""
    if measure == "loss":
        return "loss"
    if against is not None:
        return "difference"
    return f"p({tokens[0]})" if tokens else "kl"


def _measure(
    measure: str | Measure,
    call: ModelInputs,
    tokens: Sequence[int],
    labels: Tensor | None,
    against: int | None = None,
) -> Callable[..., dict[str, float]]:
    """Return the function (output, output of the model as it is, positions that count) ->
    columns.
    """

    def columns(output: Any, reference: Any, real: Tensor | None) -> dict[str, float]:
        if measure == "loss":
            return {"loss": _loss(_logits(output), call, labels, real)}
        if isinstance(measure, str):
            before = None if reference is None else _logits(reference)
            found = _compare_logits(_logits(output), before, tokens, real)
            if against is not None:
                difference = _logit_difference(_logits(output), tokens[0], against, real)
                found["difference"] = float(difference)
            return found
        value = measure(output)
        named = value if isinstance(value, Mapping) else {"value": value}
        return {str(name): float(number) for name, number in named.items()}

    return columns


def _find_logits(output: Any) -> Tensor | None:
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def _logits(output: Any) -> Tensor:
    """Return the logits of a model's output, (batch, n, vocabulary), in float32 or more."""
    logits = _find_logits(output)
    if logits is None:
        raise ValueError(
            f"the model returns {type(output).__name__} without logits; give measure= a function "
            "of it"
        )
    return logits.float() if logits.element_size() < 4 else logits


def _loss(logits: Tensor, call: ModelInputs, labels: Tensor | None, real: Tensor | None) -> float:
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
    return float(cross_entropy(logits.flatten(0, 1), labels.to(logits.device).flatten()))


def _compare_logits(
    logits: Tensor,
    reference: Tensor | None,
    tokens: Sequence[int],
    real: Bool[Tensor, "batch n"] | None,
) -> dict[str, float]:
    now = log_softmax(logits, -1)
    columns: dict[str, float] = {}
    if reference is not None:
        divergences = divergence(log_softmax(reference, -1), now)
        if real is not None:
            divergences = divergences[real.to(divergences.device)]
        # Rounding may leave the divergence of equal distributions below 0.
        columns["kl"] = float(divergences.mean().clamp(min=0.0))
    last = _after_last(now, real)
    for token in tokens:
        own = last[:, token]
        columns[f"p({token})"] = float(own.exp().mean())
        columns[f"rank({token})"] = float((last > own[:, None]).sum(-1).float().mean())
    return columns


def _after_last(
    logits: Float[Tensor, "batch *n vocabulary"], real: Bool[Tensor, "batch n"] | None
) -> Float[Tensor, "batch vocabulary"]:
    """Return the predictions after the last position of each sequence that is no padding."""
    if logits.ndim < 3 or real is None:
        return logits[:, -1] if logits.ndim == 3 else logits
    real = real.to(logits.device)
    ends = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    return logits[torch.arange(len(logits), device=logits.device), ends]


def _logit_difference(
    logits: Float[Tensor, "batch *n vocabulary"],
    token: int,
    against: int,
    real: Bool[Tensor, "batch n"] | None,
) -> Float[Tensor, ""]:
    """Return the logit of a token minus that of its rival after the last position, the mean over
    the batch.
    """
    vocabulary = logits.shape[-1]
    for name, number in (("tokens", token), ("against", against)):
        if not 0 <= number < vocabulary:
            raise ValueError(
                f"{name}: there is no token {number}; the model has {vocabulary:,}, from 0 on"
            )
    last = _after_last(logits, real)
    return (last[:, token] - last[:, against]).mean()
