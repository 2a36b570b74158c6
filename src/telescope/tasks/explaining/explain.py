"""`explain`: an example of the notes, step by step, for a terminal."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text
from torch import Tensor

from ...trace.terminal import lines, table
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
    word = query if query is not None and query.lower() in tokens else scene.query
    heads = scene.trace.scores.shape[1]
    parts: list[RenderableType] = [Rule(f"{number}  {scene.title}", align="left", style="dim"), Text(scene.says)]
    parts += [_matrix(name, numbers, tokens=scene.trace.key_tokens) for name, numbers in scene.given.items()]
    parts += [Text(), scene.trace]
    for head in range(heads):
        parts += [Text(f"\nhead {head}" if heads > 1 else "", style="bold"), scene.trace.row(word, head=head)]
    parts += [Text("\n" + "\n".join(scene.findings))] if scene.findings else []
    return Group(Text(), *parts)


def _matrix(name: str, numbers: Tensor, tokens: tuple[str, ...]) -> RenderableType:
    title = Text(f"\n{name}, {numbers.shape[0]} x {numbers.shape[1]}", style="bold cyan")
    return Group(title, table(None, lines(tokens if name == "x" else [""] * len(numbers), numbers)))
