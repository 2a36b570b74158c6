"""Write texts of any length with a model: translations and summaries (rewrite.py), continuations
(write_on.py).

May import decoding and models. Read rewrite.py first.
"""
