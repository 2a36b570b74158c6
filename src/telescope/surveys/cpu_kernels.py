"""The survey's kernel for a CPU, compiled by numba: each strip of scores is read while it is in the
cache.

The inner loops are LLVM vectors (cpu_vectors.py); the loops around them are Python. Everything is
in powers of two: lse are to base two, and 2^(score - lse) is the weight. All functions release the
GIL. numba compiles `survey_heads` at its first call and keeps the code on disk, next to this file
or in the user's cache folder.
"""

from math import log2
from pathlib import Path

import numpy as np
from numba import uint64

from . import cpu_layout, cpu_ranking, cpu_vectors, llvm_vectors
from .cpu_layout import aligned, cached, inlined
from .cpu_ranking import RANKED, block_maxima, find_largest
from .cpu_vectors import (
    cap,
    column_maxima,
    exponentials,
    multiply_tile,
    row_product,
    sum_columns,
)
from .llvm_vectors import LN_2, TILE_ROWS, TILE_VECTORS, VECTOR, at

STRIP = 32  # rows whose scores are held at a time, a multiple of TILE_ROWS


def drop_stale_code() -> None:
    """Drop code on disk that is older than the files of which it holds a copy.

    numba compares the code with the date of this file alone.
    """
    folder = survey_heads.stats.cache_path
    sources = (part.__file__ for part in (cpu_layout, cpu_ranking, cpu_vectors, llvm_vectors))
    changed = max(Path(source).stat().st_mtime for source in sources)
    indices = [] if folder is None else Path(folder).glob("cpu_kernels.survey_heads*.nbi")
    if any(index.stat().st_mtime < changed for index in indices):
        survey_heads._cache.flush()


@cached
def survey_heads(tasks, source, results):
    """Survey some rows of some heads: read the scores from a `fused.Source`, and write to, or add
    to, the arrays of `fused.Results`.

    tasks   (task, 5): part, sequence b, head h, the first row and one past the last
    """
    for t in range(tasks.shape[0]):
        part, b, h, first, last = tasks[t]
        _survey_rows(source, results, part, b, h, first, last)


@inlined
def _survey_rows(source, results, part, b, h, first_row, last_row):
    """Survey some rows of one head."""
    # The arrays of these rows: a slice costs more than a number, so all are cut here, once.
    rows = slice(first_row, last_row)
    group = max(1, results.lse.shape[1] // max(1, source.keys.shape[1]))
    strides = source.query_strides
    queries = source.queries
    first_query = b * strides[0] + h * strides[1] + first_row * strides[2]
    keys = source.keys[b, h // group]
    origin = source.origin
    first_key = origin[3]
    scores = source.scores[
        b - origin[0], h - origin[1], first_row - origin[2] : last_row - origin[2]
    ]
    start = source.start[b, h, rows]
    stop = source.stop[b, h, rows]
    slope = source.slopes[h]
    table = source.tables[h % source.tables.shape[0]]
    position = source.shift + first_row
    lse = results.lse[b, h, rows]
    received = results.received[part, b, h]
    entropy = results.entropy[b, h, rows]
    weights = results.weights[b, h, rows]
    found = results.found[b, h, rows]
    map_row = results.map_row[b, rows]
    map_column = results.map_column[b]
    pooled = results.pooled[part, b, h]
    marked_stop = results.marked_stop[rows]
    marked_keys = results.marked_keys[b, rows]
    marked_sum = results.marked_sum[b, h, rows]
    marked_weights = results.marked_weights[b, h, rows]
    listed_keys = results.listed_keys[b]
    listed_spans = results.listed_spans[b, rows]
    listed_sum = results.listed_sum[b, h, rows]
    listed_seen = results.listed_seen[b, h, rows]
    query_weights = results.query_weights[b, h, :, rows]
    weighted = results.weighted[part, b, h]
    norms = results.norms[b, h]
    carried = results.carried[b, h, rows]
    largest = results.largest[part, b, h]
    largest_row = results.largest_row[part, b, h]

    # Memory for one strip, used again by every strip.
    features = keys.shape[1]
    lanes = VECTOR // entropy.itemsize
    wide = TILE_VECTORS * lanes
    given = scores.shape[1] > 0
    width = (scores.shape[1] + lanes - 1) // lanes * lanes if given else keys.shape[0] * wide
    numbers = aligned(STRIP * width, entropy)
    strip = numbers.reshape(STRIP, width)
    # Each row is cut into blocks, of which each lane has a maximum: twice as many as the top.
    blocks = max(1, (2 * weights.shape[1] + lanes - 1) // lanes)
    maxima = aligned(blocks * lanes, entropy)
    places = np.empty(width if weights.shape[1] else 0, np.int32)
    values = np.empty(RANKED, entropy.dtype)
    ranks = np.empty(RANKED, np.int32)
    largest_places = np.empty(max(RANKED, weights.shape[1]), np.int32)
    share = np.empty(STRIP, entropy.dtype)
    sums = aligned(width, entropy).reshape(1, width)
    scaled = np.empty(STRIP, entropy.dtype)
    rows_of = np.empty(width if largest.shape[0] else 0, entropy.dtype)

    for first in range(0, entropy.shape[0], STRIP):
        count = min(STRIP, entropy.shape[0] - first)

        # Multiply the tiles in which some row of the strip sees a key.
        begin, end = (0, scores.shape[1]) if given else (width, 0)
        if not given:
            for i in range(first, first + count):
                if start[i] < stop[i]:
                    begin = min(begin, start[i])
                    end = max(end, stop[i])
            begin = begin // wide * wide
            for tile in range(begin // wide, (end + wide - 1) // wide):
                for i in range(0, count, TILE_ROWS):
                    multiply_tile(
                        at(queries, first_query + (first + i) * strides[2]), strides[2], count - i,
                        at(keys, tile * features * wide), source.scale,
                        at(strip, i * width + tile * wide), width, features,
                    )  # fmt: skip
        end = (end + lanes - 1) // lanes * lanes
        if begin >= end:  # no row sees a key
            begin = end = 0

        for i in range(count):
            row = uint64(first + i)  # unsigned: numba would ask whether it counts from the end
            # Finish the scores between low and high; outside, up to whole vectors, they are -inf.
            low, high = (
                (0, scores.shape[1]) if given else (max(start[row], begin), min(stop[row], end))
            )
            if low >= high:
                low = high = begin
            left = low // lanes * lanes
            right = (high + lanes - 1) // lanes * lanes
            vectors = (right - left) // lanes
            if given:
                for j in range(low, high):
                    strip[i, j] = scores[row, j] * source.scale
            else:
                if source.softcap > 0.0:
                    softcap = entropy.dtype.type(source.softcap)
                    cap(at(strip, i * width + left), vectors, softcap)
                _add_bias(strip, i, low, high, slope, table, position + first + i)
            _fill(strip, i, left, low, -np.inf)
            _fill(strip, i, high, right, -np.inf)
            for m in range(uint64(listed_spans.shape[1])):
                listed_seen[row, m] = _sees_any(
                    numbers, i * width, low, high, first_key, listed_keys, listed_spans, row, m
                )

            # Turn scores into powers, whose product with share[i] are the weights.
            cut = right
            if marked_stop.shape[0]:
                cut = min(max(marked_stop[row] - first_key, left), right)
            share[i], before = _survey_row(
                numbers, i * width, left, right, cut, lanes, maxima, places, values, ranks,
                largest_places, first_key, results.sinks[h], results.lse_known, row, lse, entropy,
                weights, found,
            )  # fmt: skip
            _fill(strip, i, begin, left, 0.0)
            _fill(strip, i, right, end, 0.0)

            # Sum what was asked for of this row: keys before a mark, marked and listed keys, norms.
            if marked_stop.shape[0]:
                marked_sum[row] = before * share[i]
                for m in range(uint64(marked_keys.shape[1])):
                    j = marked_keys[row, m] - first_key
                    marked_weights[row, m] = (
                        numbers[uint64(i * width + j)] * share[i] if left <= j < right else 0.0
                    )
            for m in range(uint64(listed_spans.shape[1])):
                total = entropy.dtype.type(0.0)
                for slot in range(uint64(listed_spans[row, m, 0]), uint64(listed_spans[row, m, 1])):
                    j = listed_keys[slot] - first_key
                    if low <= j < high:
                        total += numbers[uint64(i * width + j)]
                listed_sum[row, m] = total * share[i]
            if norms.shape[0]:
                total = row_product(
                    at(strip, i * width + left), at(norms, first_key + left), vectors
                )
                carried[row] = total * share[i]

        # Sum the columns of the strip: received weights, the map, sums over weighted queries.
        vectors = (end - begin) // lanes
        _add_to_columns(
            strip, share, first, count, begin, end, lanes, sums, first_key, received, map_row,
            map_column, pooled,
        )  # fmt: skip
        for m in range(query_weights.shape[0]):
            for i in range(count):
                scaled[i] = share[i] * query_weights[m, first + i]
            _sum_columns(strip, 0, count, scaled, begin, end, lanes, sums)
            for j in range(begin, min(end, weighted.shape[1] - first_key)):
                weighted[m, first_key + j] += sums[0, j]
        if largest.shape[0]:
            column_maxima(
                at(strip, begin), width, count, at(share, 0), vectors, at(sums, begin),
                at(rows_of, begin),
            )  # fmt: skip
            for j in range(begin, min(end, largest.shape[0] - first_key)):
                if sums[0, j] > largest[first_key + j]:
                    largest[first_key + j] = sums[0, j]
                    largest_row[first_key + j] = first_row + first + int(rows_of[j])


@inlined
def _fill(strip, i, first, last, number):
    for j in range(first, last):
        strip[i, j] = number


# ----------------------------------------------------------------------------------- a row's scores


@inlined
def _add_bias(strip, i, low, high, slope, table, position):
    """Add ALiBi, or a bias for each distance, to the scores of the query at a position."""
    if slope != 0.0:
        for j in range(low, high):
            strip[i, j] -= slope * abs(position - j)
    if table.shape[0]:
        reach = table.shape[0] // 2
        for j in range(low, high):
            strip[i, j] += table[min(max(j - position, -reach), reach) + reach]


@inlined
def _sees_any(scores, begin, low, high, first_key, keys, spans, row, m):
    """Return whether one of the listed keys has a score."""
    seen = False
    for slot in range(uint64(spans[row, m, 0]), uint64(spans[row, m, 1])):
        j = keys[slot] - first_key
        if low <= j < high and scores[uint64(begin + j)] != -np.inf:
            seen = True
            break
    return seen


@inlined
def _survey_row(
    strip, begin, left, right, cut, lanes, maxima, places, values, ranks, largest_places, first_key,
    sink, lse_known, row, lse, entropy, weights, found,
):  # fmt: skip
    """Replace the scores of a row by powers, write what is known of the row, and return the share
    of a power, and the sum of the powers before `cut`.
    """
    number = strip.dtype.type
    begin += left
    vectors = (right - left) // lanes
    top = weights.shape[1]

    # Find the largest scores, while they are scores: powers of small ones are all 0.
    count = 0
    largest = number(-np.inf)
    if top or not lse_known:
        largest = block_maxima(strip, begin, vectors, lanes, maxima)
    if top:
        count = find_largest(
            strip, begin, vectors, lanes, maxima, top, places, values, ranks, largest_places
        )

    # Take powers, shifted by the lse or else by the largest score.
    shift = lse[row] if lse_known else max(sink, largest)
    if shift == -np.inf:  # nothing is seen, and there is no sink
        shift = number(0.0)
    whole = (cut - left) // lanes
    part = (cut - left) % lanes
    total, spread, before = exponentials(at(strip, begin), vectors, shift, whole, part)
    share = number(1.0)
    log_total = number(0.0)
    if not lse_known:
        with_sink = total + number(2.0) ** (sink - shift) if sink > -np.inf else total
        lse[row] = -np.inf
        if with_sink > 0.0 or np.isnan(with_sink):
            share = number(1.0) / with_sink
            log_total = number(log2(with_sink))
            lse[row] = shift + log_total
    entropy[row] = (
        max(number(0.0), share * (total * log_total - spread) * number(LN_2))
        if not np.isnan(total)
        else total
    )

    # Write the top: its powers are known now.
    powers = uint64(begin)
    first_key += left
    for t in range(uint64(count)):
        place = largest_places[t]
        weights[row, t] = strip[powers + uint64(place)] * share
        found[row, t] = place + first_key
    for t in range(count, top):
        weights[row, t] = 0.0
        found[row, t] = -1
    return share, before


# -------------------------------------------------------------------------------- a strip's columns


@inlined
def _sum_columns(powers, row, count, share, begin, end, lanes, sums):
    """Write Σ powers · share over `count` rows from this one on; share[0] is that of row 0."""
    sum_columns(
        at(powers, row * powers.shape[1] + begin), powers.shape[1], count, at(share, row),
        (end - begin) // lanes, at(sums, begin),
    )  # fmt: skip


@inlined
def _add_to_columns(
    powers, share, first, count, begin, end, lanes, sums, first_key, received, map_row, map_column,
    pooled,
):  # fmt: skip
    """Add the weights of a strip to what each key receives and to the cells of the map.

    Rows that belong to the same row of the map are added up first; all rows of a strip mostly do.
    """
    row = 0
    keys = min(end, received.shape[0] - first_key)
    _sum_columns(powers, 0, count, share, begin, end, lanes, sums)
    for j in range(uint64(begin), uint64(max(begin, keys))):
        received[uint64(first_key) + j] += sums[0, j]
    while map_row.shape[0] and row < count:
        last = row + 1
        while last < count and map_row[first + last] == map_row[first + row]:
            last += 1
        if last - row == 1:
            _add_to_cells(
                powers, row, share[row], begin, keys, first_key, map_column, pooled,
                map_row[first + row],
            )  # fmt: skip
        else:
            if last - row < count:  # else `sums` are those of all rows already
                _sum_columns(powers, row, last - row, share, begin, end, lanes, sums)
            _add_to_cells(
                sums, 0, powers.dtype.type(1.0), begin, keys, first_key, map_column, pooled,
                map_row[first + row],
            )  # fmt: skip
        row = last


@inlined
def _add_to_cells(powers, i, share, begin, end, first_key, column, cells, row):
    """Add row i of powers · share to the cells of their columns; neighbours are added up first."""
    j = begin
    while j < end:
        here = column[first_key + j]
        total = powers.dtype.type(0.0)
        while j < end and column[first_key + j] == here:
            total += powers[i, j]
            j += 1
        cells[row, here] += total * share


# The functions whose code is kept on disk.
ON_DISK = (survey_heads, cpu_layout.pack_keys, cpu_layout.fingerprint_keys)
