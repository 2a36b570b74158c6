"""Random hostile input at every door of Telescope: `python -m fuzz` lists the attacks. See
fuzz/supervisor.py.
"""
