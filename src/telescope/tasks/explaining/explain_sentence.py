"""Draw an explained sentence for a terminal."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...trace.render import indent
from .sentence import ExplainedSentence, SentenceScene
from .show import JOINED, draw_alignment, percent_table


def draw(explained: ExplainedSentence, *, every_head: bool = False, steps: bool = False) -> RenderableType:
    """Return the three kinds of attention: one word's row in every head, and one head in full.

    every_head  show every head in full
    steps       show every step of the chosen head, token by token, and every product of one row
    """
    words = explained.scenes[0].attention.columns
    pieces = " ".join(words.pieces).replace(" ·", "·")
    by = f"by {explained.model}, {explained.parameters / 1e6:.1f}M parameters; every number is what it computed"
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
    for layer, watched in enumerate(attention.layers):
        parts += [Text(watched.name), percent_table(names, attention.columns.names, row[layer], float(row.max()))]
    return parts


def _draw_heads(scene: SentenceScene, every_head: bool, steps: bool) -> list[RenderableType]:
    """Return the weights of one head, or of all, and the steps from scores to weights of one row."""
    attention, chosen = scene.attention, (scene.layer, scene.head)
    layers, heads = attention.weights.shape[:2]
    parts: list[RenderableType] = []
    for place in [(i, j) for i in range(layers) for j in range(heads)] if every_head else [chosen]:
        parts.append(Text.assemble("\n", (scene.head_name(*place), "bold"), ": every row, in %"))
        parts.append(percent_table(attention.rows.names, attention.columns.names, attention.weights[place]))
    trace = attention.trace(*chosen)
    row = trace.row(attention.rows.positions(scene.row)[-1])
    title = f": from scores to weights, of the piece {row.token}; {trace.formula}"
    parts += [Text.assemble("\n", (scene.head_name(*chosen), "bold"), title), row.table()]
    return [*parts, Text(), trace, Text(), row] if steps else parts


def _draw_readings(explained: ExplainedSentence) -> RenderableType:
    """Return which heads read which of the two words."""
    scene, readings = explained.scenes[0], explained.readings
    table = Table.grid(padding=(0, 2))
    for number, word in enumerate(explained.between):
        chosen = sorted((r for r in readings if r.reads == number), key=lambda r: -r.weights[number])
        heads = ", ".join(f"{r.head} ({r.weights[number]:.4f})" for r in chosen) or "no head"
        even = f"even: {explained.even[number]:.4f}"
        table.add_row(Text(f"{scene.word} → {scene.attention.columns.names[word]}", "bold"), Text(even, "dim"), heads)
    neither = sum(r.reads is None for r in readings)
    table.add_row("neither", "", f"{neither} of {len(readings)} heads")
    caption = "\nwhich heads read which: give the word more than even weights would, and more so than the other word"
    return Group(Text(caption), indent(table))
