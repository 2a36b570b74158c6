"""Show what a model attended to, in words and numbers: worked examples, a translated sentence,
alignments.

May import trace, recording, watch, decoding, models and tasks/writing. Read examples.py first, then
sentence_views.py, which records a sentence, sentence.py, which chooses what to show of it, and
show.py, which draws it.
"""
