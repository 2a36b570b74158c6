"""The error that reading a file raises."""

from ..words import one_line


class LoadError(ValueError):
    """Raised where a file cannot be read: one sentence with the file, the tensor or field, what came and what fits.

    Nothing in the file was executed, and no model or recording was built.

    Example:
        >>> import telescope as ts
        >>> try:
        ...     ts.load("no/such/folder")
        ... except ts.LoadError as error:
        ...     print(error)
        no/such/folder does not exist
    """

    def __init__(self, sentence: str) -> None:
        """Keep the sentence on one line: names in a file may hold any character."""
        super().__init__(one_line(sentence))
