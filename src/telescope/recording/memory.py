"""Whether what a run will keep fits in memory, found out before the model runs on."""

from collections.abc import Mapping

from ..words import format_bytes
from .attention_call import AttentionCall, KeepOptions
from .recorded_call import RecordedCall
from .storage import STORES


def check_memory(
    kinds: Mapping[str, type[RecordedCall]],
    keep: str,
    count: int,
    call: AttentionCall,
    options: KeepOptions,
) -> int:
    """Return how many bytes a run will keep of `count` attentions that are like the first; raise a
    ValueError if they exceed the free memory.
    """
    device = call.queries.device
    expected = count * kinds[keep]._expected_bytes(call, options)
    if options.store.has_room(expected, device):
        return expected
    free, where = options.store.free_bytes(device)
    # Look for a way out that has room: another store, or less to keep.
    stores = [name for name in STORES if STORES[name]().free_bytes(device)[0] > expected]
    less = count * kinds["summaries"]._expected_bytes(call, options) <= free and keep != "summaries"
    way = (
        f'store="{stores[-1]}" has room'
        if stores
        else 'keep="summaries" takes less'
        if less
        else ""
    )
    raise ValueError(
        f'keep="{keep}" of {count} attentions, {call.size[0]:,} queries x {call.size[1]:,} keys, '
        f"takes {format_bytes(expected)}, and {format_bytes(free)} of {where} are free; "
        + (f"{way}, or " if way else "")
        + "choose fewer with layers=, heads= or queries="
    )
