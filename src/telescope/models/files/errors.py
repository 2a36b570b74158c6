"""What is said when a model cannot be loaded."""

LONGEST = 1000


class LoadError(ValueError):
    """One sentence: the file, the tensor or the field, what came, what fits. Nothing was built, nothing executed."""

    def __init__(self, sentence: str) -> None:
        """On one line, whatever the names in a file are made of."""
        cut = sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]} …"
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in cut))
