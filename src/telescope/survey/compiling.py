"""Tell a user who waits that kernels are being compiled."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

SECONDS = 2.0  # a wait that is not explained


@contextmanager
def tell_if_slow(what: str) -> Iterator[None]:
    """Print a line to stderr if the block takes more than two seconds: "telescope compiles `what`, once ..."."""

    def tell() -> None:
        print(f"telescope compiles {what}; this is done once on a machine", file=sys.stderr, flush=True)

    timer = Timer(SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
