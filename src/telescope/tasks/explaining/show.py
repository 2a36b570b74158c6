"""Draw for a terminal: weights between words as tables, what a model wrote as text or JSON, and an
explained sentence.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import Float
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from torch import Tensor

from ...decoding import Written
from ...models import Model
from ...traces import FirstThatFits, PlainTable, indent, number_cell
from ..writing import RewrittenPart
from .sentence import ExplainedSentence, HeadReading, SentenceScene
from .sentence_views import SentenceAttention, watch_alignment

LONGEST_WORD = 16  # most letters of a word in a table
MOST_LISTED = 6  # most words listed in a row, where the table of all words is too wide
JOINED = "a word in several pieces is one here: its row is the mean over them, its column their sum"
MOST_KEYS = 6  # of the table from scores to weights


# ---------------------------------------------------------------------------- weights between words


def draw(
    model: Model,
    parts: Sequence[RewrittenPart],
    *,
    before: str = "",
    between: str = " ",
    show: bool = False,
) -> Iterator[RenderableType]:
    """Yield the written text; where parts have several texts, or with `show`, each text in a line
    of its own.

    before   the prompt that the text continues, if any
    between  what joins the parts
    show     also yield, for each text, a table of what each written word attended to
    """
    several = any(len(part.found) > 1 for part in parts)
    # One text of each part is printed as running text.
    if not several and not show:
        yield before + between.join(part.text for part in parts)
        return
    for part in parts:
        for number, written in enumerate(part.found, 1):
            # Beam search gives scores; samples are numbered.
            label = f"{number}  " if written.score is None else f"{written.score:.4f}  "
            yield f"{label if several else ''}{before}{written.text}"
            if show and written.ids:  # a text of no tokens attended to nothing
                yield draw_alignment(watch_alignment(model, part.source, written))


def to_dict(
    model: Model,
    source: str,
    parts: Sequence[RewrittenPart],
    *,
    between: str = " ",
    show: bool = False,
) -> dict[str, Any]:
    """Return what `draw` yields as data for JSON, with the score of each text."""
    return {
        "source": source,
        "text": between.join(part.text for part in parts),
        "parts": [
            {
                "source": part.source,
                "texts": [_text_to_dict(model, part.source, text, show) for text in part.found],
            }
            for part in parts
        ],
    }


def _text_to_dict(model: Model, source: str, written: Written, show: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"text": written.text, "score": written.score, "why": written.why}
    if show and written.ids:
        attention = watch_alignment(model, source, written)
        result["alignment"] = {
            "attention": attention.layers[attention.sharpest].name,
            "rows": attention.rows.names,
            "columns": attention.columns.names,
            "weights": attention.alignment.double().tolist(),
        }
    return result


def draw_alignment(attention: SentenceAttention) -> RenderableType:
    """Return a table of what each written word attended to."""
    layer = attention.layers[attention.sharpest].name
    heads = attention.weights.shape[1]
    caption = (
        "each row: a written word, and the words it attended to, in %; the mean of the "
        f"{heads} heads of {layer}"
    )
    table = percent_table(attention.rows.names, attention.columns.names, attention.alignment)
    return Group(Text(caption, style="dim"), table)


def percent_table(
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Float[Tensor, "row column"],
    peak: float | None = None,
) -> RenderableType:
    """Return a table of weights in %, a column for each word; where that is too wide, the largest
    weights of each row.

    `peak` is the weight that is drawn brightest, the largest one unless given.
    """
    # Where all weights are 0, the scale ends at 1.
    brightest = 100 * ((float(weights.max()) if peak is None else peak) or 1.0)

    def tables() -> Iterator[PlainTable]:
        # All words if the console is wide enough, else fewer and fewer of them.
        yield _matrix(rows, columns, 100 * weights, brightest)
        for most in range(MOST_LISTED, 0, -1):
            yield _largest_of_rows(rows, columns, 100 * weights, brightest, min(most, len(columns)))

    return indent(FirstThatFits(tables))


def _matrix(
    rows: Sequence[str], columns: Sequence[str], percent: Float[Tensor, "row column"], peak: float
) -> PlainTable:
    table = _empty_table()
    table.show_header = True
    for name in columns:
        table.add_column(Text(_shorten(name)), justify="right", no_wrap=True)
    for name, row in zip(rows, percent.tolist(), strict=True):
        table.add_row(Text(_shorten(name)), *(number_cell(number, 0, peak) for number in row))
    return table


def _largest_of_rows(
    rows: Sequence[str],
    columns: Sequence[str],
    percent: Float[Tensor, "row column"],
    peak: float,
    most: int,
) -> PlainTable:
    table = _empty_table()
    # Stable: equal weights stay in the order of the words.
    largest = percent.sort(dim=-1, descending=True, stable=True)
    for name, *row in zip(
        rows, largest.values[:, :most].tolist(), largest.indices[:, :most].tolist(), strict=True
    ):
        cells = [
            number_cell(number, 0, peak, f"{_shorten(columns[j])} ")
            for number, j in zip(*row, strict=True)
        ]
        table.add_row(Text(_shorten(name)), *cells)
    return table


def _empty_table() -> PlainTable:
    table = PlainTable(
        box=None,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
        show_header=False,
        header_style="dim",
    )
    table.add_column(no_wrap=True)
    return table


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_WORD else f"{name[: LONGEST_WORD - 1]}…"


# ---------------------------------------------------------------------------- an explained sentence


def draw_sentence(
    explained: ExplainedSentence, *, every_head: bool = False, steps: bool = False
) -> RenderableType:
    """Return the three kinds of attention: one word's row in every head, and one head in full.

    every_head  show every head in full
    steps       show every step of the chosen head, token by token, and every product of one row
    """
    words = explained.scenes[0].attention.columns
    # A piece that continues a word begins with "·"; join it to the piece before.
    pieces = " ".join(words.pieces).replace(" ·", "·")
    by = (
        f"by {explained.model}, {explained.parameters / 1e6:.1f}M parameters; every number is "
        "what it computed"
    )
    heading = Text.assemble(
        (explained.source, "bold"),
        "\n",
        (explained.translation, "bold cyan"),
        (f"\n{by}\nread in {len(words.word_ids)} pieces: {pieces}\n{JOINED}", "dim"),
    )
    encoder, decoder, cross = explained.scenes
    return Group(
        heading,
        *_draw_scene(1, encoder),
        *([_draw_readings(explained)] if explained.between else []),
        *_draw_heads(encoder, every_head, steps),
        *_draw_scene(2, decoder),
        *_draw_heads(decoder, every_head, steps),
        *_draw_scene(3, cross),
        *_draw_heads(cross, every_head, steps),
        Text("\nthe alignment"),
        draw_alignment(cross.attention),
    )


def _draw_scene(number: int, scene: SentenceScene) -> list[RenderableType]:
    """Return the scene's title, and the row of one word in every head."""
    attention = scene.attention
    layers, heads = attention.weights.shape[:2]
    row = attention.weights[:, :, scene.row]
    parts: list[RenderableType] = [
        Text(),
        Rule(f"{number}  {scene.title}", align="left", style="dim"),
        Text(f"{scene.caption}; {layers} layers of {heads} heads"),
        Text.assemble("\nthe row of ", (scene.word, "bold"), " in every head, in %"),
    ]
    names = [f"head {head}" for head in range(heads)]
    # All layers share one scale of brightness.
    for layer, watched in enumerate(attention.layers):
        parts += [
            Text(watched.name),
            percent_table(names, attention.columns.names, row[layer], float(row.max())),
        ]
    return parts


def _draw_heads(scene: SentenceScene, every_head: bool, steps: bool) -> list[RenderableType]:
    """Return the weights of one head, or of all, and the steps from scores to weights of one
    row.
    """
    attention = scene.attention
    chosen = (scene.layer, scene.head)
    layers, heads = attention.weights.shape[:2]
    parts: list[RenderableType] = []
    for place in [(i, j) for i in range(layers) for j in range(heads)] if every_head else [chosen]:
        parts.append(Text.assemble("\n", (scene.head_name(*place), "bold"), ": every row, in %"))
        parts.append(
            percent_table(attention.rows.names, attention.columns.names, attention.weights[place])
        )
    trace = attention.trace(*chosen)
    # Of a word in several pieces, the last one.
    row = trace.row(attention.rows.positions(scene.row)[-1])
    largest = row.strongest(MOST_KEYS)
    left_out = f"; the {MOST_KEYS} largest weights" if largest is not row else ""
    title = f": from scores to weights, of the piece {row.token}; {trace.formula}{left_out}"
    parts += [Text.assemble("\n", (scene.head_name(*chosen), "bold"), title), largest.table()]
    return [*parts, Text(), trace, Text(), row] if steps else parts


def _draw_readings(explained: ExplainedSentence) -> RenderableType:
    """Return which heads look at which of the two words, with those that attend by position set
    apart.
    """
    scene = explained.scenes[0]
    readings = explained.readings
    names = scene.attention.columns.names
    table = PlainTable.grid(padding=(0, 2))
    for number, word in enumerate(explained.between):
        # The heads that look at this word, the largest weight first.
        chosen = sorted(
            (r for r in readings if r.reads == number), key=lambda r: -r.weights[number]
        )
        heads = ", ".join(_draw_reading(r, number) for r in chosen) or "no head"
        even = f"even: {explained.even[number]:.4f}"
        table.add_row(Text(f"{scene.word} → {names[word]}", "bold"), Text(even, "dim"), heads)
    # Heads that attend by position are counted by their habits.
    by_position = [r for r in readings if r.habit is not None]
    habits = sorted({str(r.habit) for r in by_position})
    listed = ", ".join(f"{sum(r.habit == habit for r in by_position)} {habit}" for habit in habits)
    table.add_row(
        "by position",
        "",
        f"{len(by_position)} of {len(readings)} heads{f': {listed}' if listed else ''}",
    )
    neither = sum(r.reads is None and r.habit is None for r in readings)
    table.add_row("neither", "", f"{neither} of {len(readings)} heads")
    caption = (
        f"\nwhich heads look where from {scene.word}: more weight than even weights would give, "
        "and more so than on "
        "the other word.\nHeads that always attend to the word before, themselves or one token are "
        "no evidence."
    )
    parts: list[RenderableType] = [Text(caption), indent(table)]
    if explained.control is not None:
        control = (
            f"after →: the weight in a control, in which another word stands before {scene.word}: "
            f"“{explained.control.source}”.\nWhat is measured are perspectives, not a decision of "
            "the model."
        )
        parts.append(Text(control, style="dim"))
    return Group(*parts)


def _draw_reading(reading: HeadReading, number: int) -> str:
    """Return "encoder.1.self head 2 (0.2455 → 0.2301)": a head's weight, and that in the control
    sentence.
    """
    control = f" → {reading.control[number]:.4f}" if reading.control else ""
    return f"{reading.head} ({reading.weights[number]:.4f}{control})"
