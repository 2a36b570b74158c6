"""What is said when a model cannot be loaded."""

from ..words import one_line


class LoadError(ValueError):
    """One sentence: the file, the tensor or the field, what came, what fits. Nothing was built, nothing executed."""

    def __init__(self, sentence: str) -> None:
        """On one line, whatever the names in a file are made of."""
        super().__init__(one_line(sentence))
