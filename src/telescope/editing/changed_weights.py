"""What hiding or boosting keys does to a measure, to first order in the context of an attention,
with the softmax computed again.

Of one query, let p be its weights, dA_j = dO · v_j with dO the gradient of its context O, and K the
edited keys, which count α times as much (0 where they are hidden). With the sums over K,
a = Σ p and b = Σ p dA, and those over all other keys, c and d (the sink's weight is part of c),

    dO · (O' - O) = (α - 1) (b c - a d) / (c + α a).

Queries are taken in blocks of rows. In each, p and p dA are summed once over *atoms*: keys that
belong to the same edits. The sums of every edit are sums of atoms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention import Rectangle, grouped_matmul
from ..recording import AttentionCall
from ..surveys import Block, BlockScores, compute_dtype, run_within_memory, score_blocks, sink_of

# Scores in a block: on a CPU as many as stay in its last-level cache.
SCORES = {"cpu": 2**21, "cuda": 2**26}
DENSE = 2**16  # atoms x edits up to which a matrix of ones and zeros sums atoms
# Of a row's weight, below which what is left is no sum of numbers that were computed well.
TINY = 1e-30


class KeyChange(NamedTuple):
    """One edit of keys in the calls of a layer."""

    number: int
    """Of the edit, among all that are estimated."""
    rectangle: Rectangle
    factor: float
    """What the keys count afterwards, times as much as before: 0 hides them."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """Sets of keys that belong to the same edits, of one sequence or of all alike."""

    of_key: Int[Tensor, " key"]
    """The number of each key's atom."""
    count: int
    edits: int
    atom: Int[Tensor, " pair"]
    """With `edit`, the pairs of an atom and an edit that it belongs to."""
    edit: Int[Tensor, " pair"]
    member: Float[Tensor, "atom edit"] | None
    """The same pairs as a matrix of ones and zeros, where that is small."""
    rows: Bool[Tensor, "query edit"] | None
    """Which queries each edit concerns; None is all."""

    @classmethod
    def of(
        cls,
        keys: Bool[Tensor, "edit key"],
        rows: Bool[Tensor, "edit query"] | None,
        device: torch.device,
    ) -> "Atoms":
        """Find the atoms of the keys of these edits."""
        # A key's code joins one random number for each of its edits: equal sets have equal codes.
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randint(2**62, (len(keys), 1), generator=generator)
        code = torch.zeros(keys.shape[1], dtype=torch.long)
        for own, number in zip(keys, numbers, strict=True):
            code[own] ^= number
        found, of_key = torch.unique(code, return_inverse=True)
        # Any key of an atom tells to which edits the atom belongs.
        first = torch.zeros(len(found), dtype=torch.long)
        first[of_key] = torch.arange(len(of_key))
        edit, atom = keys[:, first].nonzero(as_tuple=True)
        member = None
        if len(found) * len(keys) <= DENSE:
            member = torch.zeros(len(found), len(keys), device=device, dtype=torch.float64)
            member[atom, edit] = 1.0
        return cls(
            of_key.to(device),
            len(found),
            len(keys),
            atom.to(device),
            edit.to(device),
            member,
            None if rows is None else rows.T.to(device),
        )

    def sums(
        self, parts: Float[Tensor, "*some row key"], columns: slice
    ) -> Float[Tensor, "*some row atom"]:
        """Return the sums over the keys of each atom; `parts` are of these columns."""
        atoms = self.of_key[columns]
        if self.member is not None:
            one = atoms[:, None] == torch.arange(self.count, device=atoms.device)
            return parts @ one.to(parts.dtype)
        # Along the last axis but one, rows are added as a whole.
        empty = parts.new_zeros(*parts.shape[:-2], self.count, parts.shape[-2])
        return empty.index_add_(-2, atoms, parts.mT.contiguous()).mT

    def of_edits(self, sums: Float[Tensor, "*some row atom"]) -> Float[Tensor, "*some row edit"]:
        """Return the sums over the keys of each edit."""
        if self.member is not None:
            return sums @ self.member.to(sums.dtype)
        found = sums.new_zeros(*sums.shape[:-1], self.edits)
        return found.index_add_(-1, self.edit, sums[..., self.atom])

    def of_others(
        self,
        sums: Float[Tensor, "*some row atom"],
        inside: Float[Tensor, "*some row edit"],
        most: Bool[Tensor, "*some row edit"],
    ) -> Float[Tensor, "*some row edit"]:
        """Return the sums over all keys but those of each edit.

        inside  the sums over the keys of each edit
        most    where these keys have most of a row's weight
        """
        if self.member is not None:
            return sums @ (1.0 - self.member).to(sums.dtype)
        # Many edits: take away what is inside, and add up anew where little is left.
        found = sums.sum(-1, keepdim=True) - inside
        rows = sums.shape[:-1].numel()
        for pairs in torch.split(most.nonzero(), rows):
            at = pairs.unbind(-1)
            outside = self.outside(at[-1]).to(sums.dtype)
            found[at] = (sums[at[:-1]] * outside).sum(-1)
        return found

    def outside(self, edits: Int[Tensor, " some"]) -> Bool[Tensor, "some atom"]:
        """Return which atoms do not belong to each of these edits."""
        place = torch.full((self.edits,), -1, device=edits.device)
        unique, which = torch.unique(edits, return_inverse=True)
        place[unique] = torch.arange(len(unique), device=edits.device)
        outside = torch.ones(len(unique), self.count, dtype=torch.bool, device=edits.device)
        own = place[self.edit] >= 0
        outside[place[self.edit[own]], self.atom[own]] = False
        return outside[which]


@dataclass(frozen=True, eq=False)
class KeyChanges:
    """The edits of keys of one call; made once for all layers in which they are alike."""

    numbers: Int[Tensor, " edit"]
    factors: Float[Tensor, " edit"]
    atoms: tuple[Atoms, ...]
    """One for each sequence, or one for all."""
    heads: Bool[Tensor, "head edit"] | None
    """Which heads each edit concerns; None is all."""

    @classmethod
    def of(cls, changes: Sequence[KeyChange], call: AttentionCall) -> "KeyChanges":
        """Read the rectangles of some edits in a call."""
        queries, keys = call.size
        device = call.queries.device
        count = call.queries.shape[1]
        tables = [one.rectangle for one in changes]
        sizes = [len(one.keys) for one in tables]
        sizes += [len(one.queries) for one in tables if one.queries is not None]
        # By the rows of the call, or by the positions of its queries, which are the last ones.
        position = torch.arange(keys)
        row = torch.arange(queries)
        atoms = []
        for sequence in range(max(sizes)):
            own_keys = torch.stack([_row_of(one.keys, sequence, position) for one in tables])
            own_rows = None
            if any(one.queries is not None for one in tables):
                every = torch.ones(1, 1, dtype=torch.bool)
                own_rows = torch.stack(
                    [
                        _row_of(
                            every if one.queries is None else one.queries,
                            sequence,
                            row if one.by_row else row + (keys - queries),
                        )
                        for one in tables
                    ]
                )
            atoms.append(Atoms.of(own_keys, own_rows, device))
        heads = None
        if any(one.heads is not None for one in tables):
            all_heads = torch.ones(count, dtype=torch.bool)
            chosen = [all_heads if one.heads is None else one.heads for one in tables]
            heads = torch.stack(chosen, 1).to(device)
        return cls(
            torch.tensor([one.number for one in changes], device=device),
            torch.tensor([one.factor for one in changes], device=device, dtype=torch.float64),
            tuple(atoms),
            heads,
        )


def _row_of(
    table: Bool[Tensor, "sequences position"], sequence: int, positions: Int[Tensor, " some"]
) -> Bool[Tensor, " some"]:
    """Return a table at some positions; beyond its end it has the value of the last column."""
    own = table[sequence if len(table) > 1 else 0]
    return own[positions.clamp(0, len(own) - 1)]


def estimate_changes(
    call: AttentionCall, gradient: Float[Tensor, "batch heads query d_v"], changes: KeyChanges
) -> Float[Tensor, " edit"]:
    """Return Σ dO · (O' - O) over the queries, heads and sequences of each edit, in float64."""
    call = call.without_unwritten_keys().with_evicted_keys()
    # The sums of a block take memory, too.
    keys = call.keys.shape[-2]
    sums = max(one.count + one.edits for one in changes.atoms)
    most = SCORES.get(call.queries.device.type, SCORES["cuda"])
    most = max(keys, most * keys // (keys + 2 * sums))
    run = partial(_estimate, call, gradient, changes)
    return run_within_memory(run, most, keys, call.queries, call.keys)


def _estimate(
    call: AttentionCall, gradient: Tensor, changes: KeyChanges, most: int
) -> Float[Tensor, " edit"]:
    dtype = compute_dtype(call.queries)
    heads = call.queries.shape[1]
    group = heads // call.keys.shape[1]
    sink = sink_of(call.attention, dtype, call.queries.device).reshape(-1, 1, 1)
    sink = sink.expand(heads, 1, 1)
    total = torch.zeros(len(changes.numbers), dtype=torch.float64, device=call.queries.device)
    scores = BlockScores(call.queries, call.keys, call.attention)
    for block in score_blocks(call.queries, call.keys, call.attention, most):
        # dA of the block, with the values that its heads share.
        key_heads = slice(block.heads.start // group, -(-block.heads.stop // group))
        values = call.values[block.sequences, key_heads, block.columns].to(dtype)
        slopes = grouped_matmul(gradient[block.index].to(dtype), values.mT)
        rows = BlockRows.of(scores(block)[..., : block.width], slopes, sink[block.heads])
        # Sequences whose edits are of other keys are summed one by one.
        count = block.sequences.stop - block.sequences.start
        if len(changes.atoms) == 1:
            total += rows.estimates(changes, changes.atoms[0], block)
        else:
            for i in range(count):
                atoms = changes.atoms[block.sequences.start + i]
                total += rows.sequence(i).estimates(changes, atoms, block)
    return total


class BlockRows(NamedTuple):
    """The weights of a block of queries, and dA of each."""

    masked: Float[Tensor, "sequences heads row key"]
    """The masked scores."""
    weights: Float[Tensor, "sequences heads row key"]
    of_sink: Float[Tensor, "sequences heads row 1"]
    slopes: Float[Tensor, "sequences heads row key"]
    sink: Float[Tensor, "heads 1 1"]
    """The score of the sink; -inf if there is none."""

    @classmethod
    def of(cls, masked: Tensor, slopes: Tensor, sink: Tensor) -> "BlockRows":
        """Compute the weights of these scores."""
        return cls(masked, *_softmax(masked, sink), slopes, sink)

    def sequence(self, number: int) -> "BlockRows":
        """Return the rows of one sequence of the block."""
        one = slice(number, number + 1)
        return BlockRows(
            self.masked[one], self.weights[one], self.of_sink[one], self.slopes[one], self.sink
        )

    def estimates(self, changes: KeyChanges, atoms: Atoms, block: Block) -> Float[Tensor, " edit"]:
        """Return the sums of dO · (O' - O) over these rows, for each edit."""
        # The sums over the keys of each edit, and over all others.
        sums = atoms.sums(self.weights, block.columns)
        a = atoms.of_edits(sums)
        most = a > 0.5
        c = atoms.of_others(sums, a, most) + self.of_sink
        sums = atoms.sums(self.weights * self.slopes, block.columns)
        b = atoms.of_edits(sums)
        d = atoms.of_others(sums, b, most)

        factors = changes.factors.to(a.dtype)
        left = c + factors * a
        found = (factors - 1.0) * (b * c - a * d) / left
        # Where next to nothing is left beside hidden keys, the softmax is computed anew.
        rare = (a > 0.0) & (left < TINY)
        found = found.masked_fill(a == 0.0, 0.0)
        if bool(rare.any()):
            self._compute_anew(found, rare, atoms, factors, block)

        # Only the queries and heads that each edit concerns.
        if atoms.rows is not None:
            found = found.masked_fill(~atoms.rows[block.rows], 0.0)
        if changes.heads is not None:
            found = found.masked_fill(~changes.heads[block.heads, None], 0.0)
        return found.sum((0, 1, 2), dtype=torch.float64)

    def _compute_anew(
        self, found: Tensor, rare: Tensor, atoms: Atoms, factors: Tensor, block: Block
    ) -> None:
        """Write dO · (O' - O) of some rows and edits into `found`, from the scores of the keys that
        are left.
        """
        keys = self.masked.shape[-1]
        step = max(1, self.masked.numel() // keys)
        for pairs in torch.split(rare.nonzero(), step):
            sequence, head, row, edit = pairs.unbind(-1)
            at = (sequence, head, row)
            outside = atoms.outside(edit)[:, atoms.of_key[block.columns]]
            scores = self.masked[at]
            # ln 0 hides a key.
            edited = torch.where(outside, scores, scores + factors[edit, None].log())
            weights, _ = _softmax(edited, self.sink[head, 0])
            slopes = self.slopes[at]
            found[*at, edit] = ((weights - self.weights[at]) * slopes).sum(-1)


def _softmax(masked: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of masked scores, and that of the sink; zeros where nothing is seen."""
    peak = torch.maximum(masked.amax(-1, keepdim=True), sink)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    powers = torch.exp(masked - peak)
    of_sink = torch.exp(sink - peak)
    total = powers.sum(-1, keepdim=True) + of_sink
    total = total.masked_fill(total == 0.0, 1.0)
    return powers / total, of_sink / total
