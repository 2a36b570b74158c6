"""`explain`: an example of the notes, step by step, for a terminal."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from ..observe.walk import matrix, row, walk
from .examples import Example, Scene


def explain(example: Example, query: str | None = None) -> RenderableType:
    """All scenes of an example; `query` is the word whose row is written out, product by product."""
    words = [token for scene in example.scenes for token in scene.trace.query_tokens]
    if query is not None and query.lower() not in (word.lower() for word in words):
        example.scenes[0].trace.find(query)  # says which word was meant
    opening = Text.assemble((example.sentence, "bold"), "\n", (example.origin, "dim"))
    return Group(opening, *(_scene(i, scene, query) for i, scene in enumerate(example.scenes, 1)))


def _scene(number: int, scene: Scene, query: str | None) -> RenderableType:
    tokens = [token.lower() for token in scene.trace.query_tokens]
    chosen = query if query is not None and query.lower() in tokens else scene.query
    heads = scene.trace.scores.shape[1]
    rows = [row(scene.trace.row(chosen, head=head)) for head in range(heads)]
    named = (
        [(Text(f"\nhead {i}", style="bold"), picture) for i, picture in enumerate(rows)]
        if heads > 1
        else [(Text(), *rows)]
    )
    return Group(
        Text(),
        Rule(f"{number}  {scene.title}", align="left", style="dim"),
        Text(scene.says),
        *(matrix(name, numbers) for name, numbers in scene.given.items()),
        *([Text()] if scene.given else []),
        walk(scene.trace),
        *(part for pair in named for part in pair),
        Text("\n" + "\n".join(scene.findings)) if scene.findings else Text(),
    )
