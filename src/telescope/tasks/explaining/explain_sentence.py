"""`explain` of a sentence of one's own, for a terminal."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...trace.terminal import inset
from .sentence import Explained, SentenceScene
from .show import JOINED, shares, show


def draw(explained: Explained, *, every_head: bool = False, steps: bool = False) -> RenderableType:
    """The three attentions: one word's row in every head, and one head in full.

    every_head  every head in full
    steps       the head with every step of every piece, and every product of one row
    """
    words = explained.scenes[0].looking.columns
    pieces = " ".join(words.pieces).replace(" ·", "·")
    by = f"by {explained.model}, {explained.parameters / 1e6:.1f}M parameters; every number is what it computed"
    opening = Text.assemble(
        (explained.source, "bold"),
        "\n",
        (explained.translation, "bold cyan"),
        (f"\n{by}\nread in {len(words.of)} pieces: {pieces}\n{JOINED}", "dim"),
    )
    encoder, decoder, cross = explained.scenes
    return Group(
        opening,
        *_scene(1, encoder),
        *([_readings(explained)] if explained.between else []),
        *_heads(encoder, every_head, steps),
        *_scene(2, decoder),
        *_heads(decoder, every_head, steps),
        *_scene(3, cross),
        *_heads(cross, every_head, steps),
        Text("\nthe alignment"),
        show(cross.looking),
    )


def _scene(number: int, scene: SentenceScene) -> list[RenderableType]:
    """What it is, and the row of one word in every head."""
    looking = scene.looking
    layers, heads = looking.weights.shape[:2]
    row = looking.weights[:, :, scene.row]
    parts: list[RenderableType] = [
        Text(),
        Rule(f"{number}  {scene.title}", align="left", style="dim"),
        Text(f"{scene.says}; {layers} layers of {heads} heads"),
        Text.assemble("\nthe row of ", (scene.word, "bold"), " in every head, in %"),
    ]
    names = [f"head {head}" for head in range(heads)]
    for layer, watched in enumerate(looking.layers):
        parts += [Text(watched.name), shares(names, looking.columns.names, row[layer], float(row.max()))]
    return parts


def _heads(scene: SentenceScene, every_head: bool, steps: bool) -> list[RenderableType]:
    """The weights of a head, and how those of one row came about."""
    looking, chosen = scene.looking, (scene.layer, scene.head)
    layers, heads = looking.weights.shape[:2]
    parts: list[RenderableType] = []
    for at in [(i, j) for i in range(layers) for j in range(heads)] if every_head else [chosen]:
        parts.append(Text.assemble("\n", (scene.name(*at), "bold"), ": every row, in %"))
        parts.append(shares(looking.rows.names, looking.columns.names, looking.weights[at]))
    trace = looking.trace(*chosen)
    row = trace.row(looking.rows.tokens(scene.row)[-1])
    of = f": from scores to weights, of the piece {row.token}; {trace.formula}"
    parts += [Text.assemble("\n", (scene.name(*chosen), "bold"), of), row.table()]
    return [*parts, Text(), trace, Text(), row] if steps else parts


def _readings(explained: Explained) -> RenderableType:
    """Which heads read which of the two words."""
    scene, readings = explained.scenes[0], explained.readings
    drawn = Table.grid(padding=(0, 2))
    for number, word in enumerate(explained.between):
        of = sorted((r for r in readings if r.reads == number), key=lambda r: -r.weights[number])
        heads = ", ".join(f"{r.head} ({r.weights[number]:.4f})" for r in of) or "no head"
        even = f"even: {explained.even[number]:.4f}"
        drawn.add_row(Text(f"{scene.word} → {scene.looking.columns.names[word]}", "bold"), Text(even, "dim"), heads)
    neither = sum(r.reads is None for r in readings)
    drawn.add_row("neither", "", f"{neither} of {len(readings)} heads")
    says = "\nwhich heads read which: give it more than an even look at all pieces would, and more so than the other"
    return Group(Text(says), inset(drawn))
