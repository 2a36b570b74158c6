"""Record a model's attention while it runs: Telescope's models by module hooks, Hugging Face's by
their interface.

Imports recording and the rooms below it, layers, and transformers if the model needs it. Read
watch.py first: it lists the way of one call from the model into the recording.
"""

from .watch import watch

__all__ = ["watch"]
