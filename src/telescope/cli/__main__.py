"""python -m telescope.cli"""

from . import main

main()
