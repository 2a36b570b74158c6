"""Compile Triton kernels in parallel, and tell a user who waits for a compiler."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock, Timer
from typing import Any

SECONDS = 2.0  # a wait that is not explained
THREADS = 8  # compilers at a time; most of their work does not hold Python's lock
# Seconds a thread may hold Python's lock: enough to reach the part of a compiler that needs no
# lock.
SLICE = 0.05

logger = logging.getLogger(__name__)

_compiling = Lock()


@contextmanager
def tell_if_slow(what: str) -> Iterator[None]:
    """Log a line if the block takes more than two seconds: "compiling `what`; this is done once on
    a machine".
    """

    def tell() -> None:
        logger.info("compiling %s; this is done once on a machine", what)

    timer = Timer(SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def compile_in_parallel(compilations: Sequence[Callable[[], Any]]) -> None:
    """Call functions that compile Triton kernels, several at a time. Raises what the first to fail
    raises.
    """
    from triton.runtime import driver

    what = "the GPU's survey kernels for this definition"
    with _compiling, tell_if_slow(what), _long_slices(), ThreadPoolExecutor(THREADS) as pool:
        kept = pool.submit(keep_triton_key)
        # The first use builds the driver: once, not in every thread.
        driver.active.get_current_target()
        kept.result()
        for _ in pool.map(lambda compilation: compilation(), compilations):
            pass


@contextmanager
def _long_slices() -> Iterator[None]:
    """Switch between Python's threads less often: eight that take turns every 5 ms finish a quarter
    later.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SLICE)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@cache
def keep_triton_key() -> None:
    """Keep the hash of Triton's own files, a part of every key of its cache, in that cache.

    Triton reads its 500 MB again in every process, for 0.4 to 2.5 seconds. The hash kept is used as
    long as these files have the same names, sizes and times of change.
    """
    import triton
    from triton.runtime import cache as triton_cache

    if not hasattr(triton_cache, "triton_key"):  # another version, which has it elsewhere
        return
    package = Path(triton.__file__).parent
    parts = (package / part for part in ("_C", "backends", "compiler", "language", "runtime"))
    files = sorted(
        file for part in parts for kind in ("*.py", "*.so", "*.pyd") for file in part.rglob(kind)
    )
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    manager = triton_cache.get_cache_manager(
        sha256(repr((triton.__version__, stamps)).encode()).hexdigest()
    )
    path = manager.get_file("triton_key")
    key = triton_cache.triton_key() if path is None else Path(path).read_text()
    if path is None:
        manager.put(key, "triton_key", binary=False)
    triton_cache.triton_key = cache(lambda: key)
