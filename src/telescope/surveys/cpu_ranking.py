"""Find the largest scores of a row on a CPU, compiled by numba as a part of the survey's kernel.

A bound that about twice as many scores reach as are wanted is found first; those few are then
sorted. A strip of scores is passed as one axis, with the place of a row's first score in it.
"""

import numpy as np
from numba import uint64

from .cpu_layout import inlined
from .cpu_vectors import find_reaching, lane_maxima, largest_of, nth_largest, rank
from .llvm_vectors import at

RANKED = 64  # scores that are compared with one another; more are sorted one by one


@inlined
def block_maxima(strip, begin, vectors, lanes, maxima):
    """Write the largest score of every lane in each block of a row, and return the largest of all.

    Neighbours are in different lanes, so that the largest scores of a row are in different lanes
    more often than not: the n-th largest of twice as many maxima is close to the n-th largest
    score.
    """
    blocks = maxima.shape[0] // lanes
    for block in range(blocks):
        first = vectors * block // blocks
        last = vectors * (block + 1) // blocks
        lane_maxima(at(strip, begin + first * lanes), last - first, at(maxima, block * lanes))
    return largest_of(at(maxima, 0), blocks)


@inlined
def find_largest(strip, begin, vectors, lanes, maxima, top, places, values, ranks, largest):
    """Write where the largest scores of a row are, largest first, counted from the row's first
    score, and return how many there are: `top`, or fewer where the row has fewer.

    Among equal scores the lower key comes first. `maxima` are those of `block_maxima`.
    """
    # The scores that reach the top-th of the maxima are few. Those of -inf count as none.
    nth = nth_largest(at(maxima, 0), maxima.shape[0] // lanes, top)
    bound = strip.dtype.type(max(nth, np.finfo(strip.dtype).min))
    count = find_reaching(at(strip, begin), vectors, bound, at(places, 0))
    # Unsigned: numba would ask of each signed index whether it counts from the end.
    first = uint64(begin)
    if count <= RANKED:
        # Compare all with one another: without branches, for few scores that is faster.
        for n in range(uint64(count)):
            values[n] = strip[first + uint64(places[n])]
        rank(at(values, 0), count, at(ranks, 0))
        for n in range(uint64(count)):
            largest[uint64(ranks[n])] = places[n]
        return min(count, top)

    kept = 0
    for n in range(count):
        place = places[n]
        score = strip[first + uint64(place)]
        if kept == top and not score > strip[first + uint64(largest[top - 1])]:
            continue
        # Insert it, and move smaller ones back.
        slot = kept if kept < top else top - 1
        while slot > 0 and strip[first + uint64(largest[slot - 1])] < score:
            largest[slot] = largest[slot - 1]
            slot -= 1
        largest[slot] = place
        kept = min(kept + 1, top)
    return kept
