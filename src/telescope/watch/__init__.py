"""Watch a model while it runs: Telescope's own through module hooks, Hugging Face's through its attention interface.

Imports recording and what is below it, and transformers where there is one. Read watch.py first, then observer.py.
"""

from .watch import watch

__all__ = ["watch"]
