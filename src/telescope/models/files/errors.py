"""What is said when a model cannot be loaded."""


class LoadError(ValueError):
    """One sentence: the file, the tensor or the field, what came, what fits. Nothing was built, nothing executed."""
