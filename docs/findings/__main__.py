"""Run the scripts of this section, one after the other: python -m docs.findings [NAME ...]

Names are those of the pages; without one, all of them run. The training for the page on induction
heads takes a GPU, or hours: `phases` runs only by its name.
"""

import sys
from importlib import import_module

PAGES = ("whisper", "sinks", "induction", "streaming", "minilm")
KNOWN = (*PAGES, "phases")


def main() -> None:
    """Run the scripts that the command line names."""
    names = sys.argv[1:] or list(PAGES)
    for name in names:
        if name not in KNOWN:
            sys.exit(f"there is no finding {name!r}; there are {', '.join(KNOWN)}")
    # The scripts read options of their own, of which there are none here.
    sys.argv[1:] = []
    for name in names:
        import_module(f"docs.findings.{name}").main()


if __name__ == "__main__":
    main()
