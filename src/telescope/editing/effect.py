"""`effect`: run a model with each of many edits, and tabulate what changed.

Edits that change sequences independently of each other run together: the inputs are repeated, and
each edit concerns its own copy. Frozen and redefining edits run one at a time, and so do all edits
of a model whose attentions have other rows than the inputs.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor, nn

from ..field_words import FieldNames
from ..files import frame
from ..guesses import OF_MEASURES, OF_TABLE
from ..recording import list_names
from ..traces import PlainTable, PrintedTable, showing_progress
from ..words import counted, direction, hint, suggests
from .call_edits import SequencesHiddenError
from .edit import editing
from .edits import Edit, Needs
from .estimated_effects import VERIFY, Drops, Verify, check_how, recall_of, verified_columns
from .estimates import estimate
from .measured import (
    check_rivals,
    find_logits,
)
from .measures_of_effect import Measure, differentiable, measure_columns, restored_column
from .model_inputs import ModelInputs
from .restored import RUNS, are_alike, check_measure, with_restored

TOKENS = 8192  # of the inputs of one batch, at most, unless one edit takes more
MAX_EDITS = 32  # of one batch
# Tokens beyond which edits run one at a time: masks that differ by sequence are slower than one.
LONG = 2048
MEASURES = ("logits", "loss")  # measures by name; others are functions of the model's output


@dataclass(frozen=True, repr=False)
class Effects(PrintedTable, FieldNames):
    """A table with one row for each edit, and one for the model as it is. Returned by `ts.effect`.

    `columns` maps the name of each column to its numbers, as the constructor of a pandas frame
    takes it. The first column, "edit", holds the edits themselves, with None for the model as it
    is, in the first row, and "corrupted" for the corrupted inputs, in the second.

    Attributes:
        columns: the numbers of each column by its name.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> effects = ts.effect(model, torch.tensor([[1, 2, 3]]), ts.mute.each(model))
        >>> len(effects), list(effects.columns)
        (3, ['edit', 'kl'])
        >>> [*effects.sort("kl").rows[0]], len(effects.table())
        (['edit', 'kl'], 3)
        >>> ids, edits = torch.tensor([[1, 2, 3]]), ts.mute.each(model)
        >>> measure = lambda logits: logits[..., 0].sum()
        >>> found = ts.effect(model, ids, edits, measure, how="gradient", verify="all")
        >>> found.recall(top=1, among=2)
        1.0
    """

    columns: dict[str, list[Any]]

    _theirs = OF_TABLE | {"values": ".columns", "head": "a slice: [:5]"}

    def __len__(self) -> int:
        return len(self.columns["edit"])

    @overload
    def __getitem__(self, which: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, which: str) -> list[Any]: ...

    @overload
    def __getitem__(self, which: slice) -> "Effects": ...

    def __getitem__(self, which: Any) -> Any:
        """Return one row, as a mapping from the names of the columns, a table of several, or the
        column of this name.
        """
        if isinstance(which, str):
            return self.columns[self._named(which)]
        part = {name: column[which] for name, column in self.columns.items()}
        return Effects(part) if isinstance(which, slice) else part

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row, as a mapping from the names of the columns."""
        return [self[i] for i in range(len(self))]

    def table(self, *, library: str = "pandas") -> Any:
        """Return the table as a frame of pandas or polars; edits are sentences, and "as it is" the
        model unedited.

        Args:
            library: "pandas" or "polars".
        """
        edits = ["as it is" if edit is None else str(edit) for edit in self.columns["edit"]]
        return frame(self.columns | {"edit": edits}, library)

    def sort(
        self,
        column: str | None = None,
        *,
        descending: bool | None = None,
        rising: bool | None = None,
    ) -> "Effects":
        """Return the table with its edits in the order of a column; rows without edits stay first.

        Args:
            column: None is the first column of numbers, the measure.
            descending: the direction; the largest comes first, unless it is False.
            rising: the same, the other way round: `rising=True` is `descending=False`.

        Raises:
            ValueError: there is no such column, or the two directions differ.
        """
        column = [*self.columns][1] if column is None else self._named(column)
        plain = [i for i, one in enumerate(self.columns["edit"]) if one in (None, "corrupted")]
        edited = [i for i in range(len(self)) if i not in plain]
        # A number that is not known, NaN, comes last either way.
        values = self.columns[column]
        known = [i for i in edited if values[i] == values[i]]
        order = sorted(known, key=lambda i: values[i], reverse=not direction(rising, descending))
        order += [i for i in edited if values[i] != values[i]]
        return Effects(
            {name: [values[i] for i in (*plain, *order)] for name, values in self.columns.items()}
        )

    def _named(self, column: str) -> str:
        """Return the name of a column; raise a ValueError if there is none of this name."""
        if column not in self.columns:
            raise ValueError(f'there is no column "{column}"; {hint(column, self.columns)}')
        return column

    def _ours(self, name: str) -> str | None:
        columns: dict[str, Any] = self.__dict__.get("columns", {})
        return f'a column: effects["{name}"]' if name in columns else super()._ours(name)

    def recall(self, top: int = 10, among: int = 20) -> float:
        """Return which share of the `top` exactly largest effects, in absolute value, is `among`
        the largest estimates of `how="gradient"`; every edit has to be verified.

        Args:
            top: how many of the exactly largest effects.
            among: how many of the largest estimates.

        Raises:
            ValueError: not every edit was verified.
        """
        return recall_of(self.columns, top, among)

    def __rich__(self) -> PlainTable:
        table = PlainTable(box=None, pad_edge=False)
        for name in self.columns:
            side: Any = "left" if name == "edit" else "right"
            # Only the edits may be folded: a number that is cut is another number.
            table.add_column(name, justify=side, no_wrap=name != "edit", overflow="fold")
        for row in self.rows:
            edit, *numbers = row.values()
            cells = [_cell(one) for one in numbers]
            table.add_row("as it is" if edit is None else str(edit), *cells)
        return table


def _cell(number: float) -> str:
    if number != number:
        return "-"  # was not run
    return str(number) if isinstance(number, int) else f"{number:.4g}"


@suggests("effect", edit="edits=, a list", metric="measure=", loss='measure="loss"', method="how=")
def effect(
    model: nn.Module,
    inputs: Any,
    edits: Edit | Iterable[Edit | Sequence[Edit]],
    measure: str | Measure = "logits",
    *,
    tokens: Sequence[int] = (),
    against: int | Sequence[int] = (),
    labels: Tensor | None = None,
    corrupted: Any = None,
    run: str = "corrupted",
    how: str = "exact",
    verify: Verify = VERIFY,
    drops: Drops = 0,
    tokenizer: Any = None,
    progress: bool | None = None,
) -> Effects:
    """Run a model with each edit, and return a table of what changed; or estimate that of all edits
    by one gradient, and run the edits with the largest estimates.

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
        against: the id of a rival of the token, or as many ids as there are tokens. Column
            "difference": the logit of a token less that of its rival after the last position, the
            mean over the pairs and the batch.
        labels: (batch, n) what each position should predict, -100 for positions that do not count;
            None for the input ids themselves, one position on; with `corrupted` those of `inputs`
            in every row.
        corrupted: other inputs, such as a sentence with one word changed. The second row is the
            model as it is on them, and the column "restored" is of the difference; without
            `against`, of the probability of the first of `tokens`; without these, of "kl"; of
            "loss", or of the value of the function, "restored(name)" of several.
        run: which inputs run with the edits: "corrupted", patched from a recording of `inputs`
            (denoising), or "clean", patched from a recording of `corrupted` (noising).
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
        progress: whether to show how far it is, on standard error; None shows a bar on a terminal,
            and a line a minute elsewhere.

    Returns:
        The table; its first row is the model as it is.

    Raises:
        TypeError, ValueError: as `ts.edit`; or the model returns no logits, and `measure` needs
            them; a token is not in the vocabulary; the measure is the same for both inputs; or the
            measure or an edit has no gradient.

    Example:
        >>> import torch, telescope as ts
        >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
        >>> model = ts.models.GPT(config).eval()
        >>> table = ts.effect(
        ...     model, torch.tensor([[1, 2, 3]]), [ts.mute(), ts.hide(0)], "loss"
        ... )
        >>> [str(edit) for edit in table.columns["edit"]]
        ['None', 'mute every head in every layer', 'hide key 0 from every query ...']
    """
    if isinstance(measure, str) and measure not in MEASURES:
        ours = OF_MEASURES.get(measure)
        way = f"what others call {measure} is {ours}" if ours else hint(measure, MEASURES)
        raise ValueError(f'there is no measure "{measure}"; {way}, or a function of the output')
    check_how(how, verify, drops)
    if run not in RUNS:
        raise ValueError(f'there is no run="{run}"; {hint(str(run), RUNS)}')
    if corrupted is not None and how != "exact":
        raise ValueError(
            'how="gradient" estimates edits of one text, and no patches from another; leave out '
            'how="gradient", and every patch is run'
        )
    rivals = (against,) if isinstance(against, int) else tuple(against)
    check_rivals(tokens, rivals, measure)
    _check_read(measure, tokens, labels, corrupted, run)
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    call = ModelInputs.of(model, inputs, tokenizer)
    # One edit by itself is a list of one.
    several = edits if isinstance(edits, Iterable) and not isinstance(edits, str) else [edits]
    listed = [tuple(one) if isinstance(one, list | tuple) else (one,) for one in several]
    for one in (one for row in listed for one in row):
        if not isinstance(one, Edit):
            raise TypeError(
                f"edits={one!r} is {type(one).__name__}; it takes edits, such as "
                "[ts.mute(0, heads=1)], or ts.mute.each(model) for all heads"
            )
    measured = measure_columns(measure, call, tokens, rivals, labels)
    clean = Runs(model, call, tokenizer, measured, isinstance(measure, str))
    named: list[Any] = [None]
    if how == "gradient":
        name, value = differentiable(measure, call, tokens, rivals, labels)
        found = estimate(model, call, listed, tokenizer, value, drops)
        clean.run_plain()
        columns = verified_columns(
            found, listed, name, verify, lambda some: _run_each(clean, some, progress)
        )
        clean.idle = found.idle
        edited = clean
    else:
        clean.run_plain()
        runs = [clean]
        if corrupted is not None:
            other = ModelInputs.of(model, corrupted, tokenizer)
            runs.append(Runs(model, other, tokenizer, measured, isinstance(measure, str)))
            runs[1].run_plain()
            named.append("corrupted")
        edited = runs[-1] if run == "corrupted" else clean
        # What each row is compared with: the clean output, where positions can be compared.
        restores = restored_column(measure, tokens, rivals)
        if corrupted is not None:
            logits = [find_logits(one.plain) for one in runs]
            alike = are_alike(logits[0], logits[1], [one.real for one in runs])
            check_measure(restores, alike, labels)
            for one in runs:
                one.reference = clean.plain if alike else None
        rows = [one.measure_plain() for one in runs] + _run_each(edited, listed, progress)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        if corrupted is not None:
            columns = with_restored(columns, [restores] if restores in columns else [*columns])
    if edited.idle:
        warnings.warn(
            f"{len(edited.idle)} of the edits changed nothing, since no attention that they name "
            f"was called while the model ran: {list_names([*map(str, edited.idle)])}; pass inputs "
            "that reach these attentions, or restore the forward of the modules around them",
            stacklevel=2,
        )
    named += [one[0] if len(one) == 1 else one for one in listed]
    return Effects({"edit": named} | columns)


def _check_read(
    measure: str | Measure, tokens: Sequence[int], labels: Any, corrupted: Any, run: str
) -> None:
    """Raise a ValueError where an argument was given that nothing would read."""
    kind = f'"{measure}"' if isinstance(measure, str) else "a function"
    if len(tokens) and measure != "logits":
        raise ValueError(
            f'tokens={[*tokens]} are tabulated by measure="logits", and measure is {kind}; leave '
            "one of the two out"
        )
    if labels is not None and measure != "loss":
        raise ValueError(
            f'labels= are what measure="loss" predicts, and measure is {kind}; leave labels= out, '
            'or pass measure="loss"'
        )
    if corrupted is None and run != RUNS[0]:
        raise ValueError(
            f'run="{run}" chooses between two inputs, and there are no others; pass corrupted='
        )


def _run_each(
    runs: "Runs", edits: Sequence[tuple[Edit, ...]], progress: bool | None
) -> list[dict[str, float]]:
    """Return the row of each edit."""
    rows: list[dict[str, float]] = []
    with showing_progress("effect", progress) as advance:
        for batch in _batches(edits, runs.call):
            rows += runs.edited(batch)
            advance(len(rows) / len(edits), f"{len(rows):,} of {counted(len(edits), 'edit')}")
    return rows


def _batches(edits: Sequence[tuple[Edit, ...]], call: ModelInputs) -> list[list[tuple[Edit, ...]]]:
    """Return the edits in groups that run together."""
    together = max(1, min(MAX_EDITS, TOKENS // max(call.batch * call.longest, 1)))
    if not call.can_repeat or call.longest > LONG:
        together = 1
    batches: list[list[tuple[Edit, ...]]] = []
    room = 0  # for more edits in the last batch
    for several in edits:
        alone = any(Needs.WHOLE_BATCH in one._needs for one in several)
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
        logits = find_logits(self.plain)
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
