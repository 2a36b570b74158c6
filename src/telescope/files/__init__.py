"""Safe reading and writing of files: checked paths, safetensors, atomic replacement, definitions as
JSON, errors.

May import attention and words. Read paths.py first for reading, atomic.py for writing.
"""
