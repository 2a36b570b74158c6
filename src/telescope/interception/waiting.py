"""How much of a text may wait to be recorded, until somebody reads."""

from torch import Tensor

from ..recording import Device

WAITING_BYTES = 2**28  # of what waits: a longer text takes longer than its recording
WAITING_SHARE = 32  # of a GPU's free memory, one part may wait
WAITING_SCORES = 2**26  # of a head: a reader should not wait for longer surveys


def bytes_that_may_wait(queries: Tensor) -> int:
    """Return how many bytes may wait of a text whose latest pass has these queries."""
    if not queries.is_cuda or queries.shape[-2] ** 2 > WAITING_SCORES:
        return WAITING_BYTES
    return max(WAITING_BYTES, Device().free_bytes(queries.device)[0] // WAITING_SHARE)
