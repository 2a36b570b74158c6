"""What is said when training cannot go on."""


class TrainingError(ValueError):
    """One sentence: what happened, at which step, which checkpoint is there, and the way out."""
