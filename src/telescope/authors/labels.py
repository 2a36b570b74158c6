"""How authors are called in tables and sentences."""

from collections.abc import Collection

from .following import Author

# What models call the embedding of tokens.
WORDS = (
    "embedding",
    "target_embedding",
    "wte",
    "embed_tokens",
    "embed_in",
    "tok_embeddings",
    "word_embeddings",
    "shared",
)


class Labels:
    """Short names of the authors of one model: "head 0.3" is head 3 of layer 0.

    Stacks are named where there are several, and cross-attentions where a layer has two attentions.
    """

    def __init__(self, attentions: Collection[str]) -> None:
        self._places = {name: _place(name) for name in attentions}
        self._stacks = _distinct({stack for stack, _, _ in self._places.values()})
        self._counts: dict[tuple[str, str], list[str]] = {}
        for name, (stack, number, _) in self._places.items():
            self._counts.setdefault((stack, number), []).append(name)

    def attention(self, name: str) -> str:
        """Return the layer of an attention, with its stack and part where they are needed."""
        stack, number, rest = self._places.get(name) or _place(name)
        beside = self._counts.get((stack, number), [])
        words = [self._stacks.get(stack, "")]
        # Of two attentions in a layer, the first reads its own sequence.
        words += ["cross"] if len(beside) > 1 and name != beside[0] else []
        words += [number or rest]
        return " ".join(word for word in words if word)

    def __call__(self, author: Author) -> str:
        if author.kind == "head":
            before, _, number = self.attention(author.name).rpartition(" ")
            return " ".join(word for word in (before, "head", f"{number}.{author.head}") if word)
        if author.kind == "bias":
            return f"bias of W_O {self.attention(author.name)}"
        if author.kind == "feed-forward":
            stack, number, _ = _place(author.name)
            if not number:
                return author.name
            return " ".join([self._stacks.get(stack, ""), "feed-forward", number]).strip()
        if author.kind == "attention":
            return f"attention {author.name}"
        if author.kind in ("norm", "rest"):
            return author.name
        last = author.name.rpartition(".")[2]
        if author.kind == "positions" or (author.kind == "embedding" and _is_of_positions(last)):
            return "position"
        if author.kind == "embedding" and last in WORDS:
            return "word"
        return last


def _is_of_positions(last: str) -> bool:
    return "pos" in last or last == "wpe"


def _place(path: str) -> tuple[str, str, str]:
    """Return the stack of a path, the number of its layer, and what comes behind."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    if at is None:
        return "", "", path
    return ".".join(parts[:at]), parts[at], ".".join(parts[at + 1 :])


def _distinct(stacks: set[str]) -> dict[str, str]:
    """Return the part of the path of each stack by which it differs from the others; nothing for a
    model of one stack.
    """
    if len(stacks) < 2:
        return {}
    parts = {stack: stack.split(".") for stack in stacks}
    shared = set.intersection(*map(set, parts.values()))
    return {
        stack: next((part for part in own if part not in shared), stack)
        for stack, own in parts.items()
    }
