"""Models in files: loading, import from Hugging Face and llama2.c, export to Hugging Face. Never
pickle.

May import what models may. Read load.py first, then build.py for how weights are checked and
loaded.
"""
