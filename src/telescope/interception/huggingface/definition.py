"""Read a call of one of transformers' attention functions as an AttentionCall.

Each implementation describes its mask in another way: `sdpa` is causal by itself if it is passed no
mask, `eager` applies the mask it is passed and nothing else, `flash` takes padding and windows as
arguments, `flex` takes a mask function.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...attention import (
    Attention,
    Bias,
    Documents,
    Mask,
    Relative,
    causal,
    everyone,
    from_additive,
    hide_first_keys,
    window,
)
from ...engines import torch_modes
from ...recording import AttentionCall
from ..mask_tensors import FunctionMask, Translations, pad_to, padding_mask, read_mask
from .masks import LazyMask, MaskDescription, MaskOffsets

OFFSETS = 16  # masks whose offsets are remembered; the layers of one forward pass use a few


class DefinitionReader:
    """Read the calls of one model. A mask or bias that is passed to all layers is translated
    once.
    """

    def __init__(self) -> None:
        self._translations = Translations()
        self._biases: dict[int, Bias | None] = {}  # the latest position bias of each module, by id
        self._last = Attention()
        self._offsets: dict[tuple[int, int, int], tuple[int, Tensor | None]] = {}

    def remember_offsets(self, config: Any, offsets: MaskOffsets, keep: Tensor | None) -> None:
        """Remember the position of a mask's first key and its padding, for attentions that are
        passed neither.

        Only the latest are remembered: while a model generates, each token has a mask with one more
        key.
        """
        key = (id(config), offsets.queries, offsets.keys)
        # Insert the key anew, so that the oldest mask comes first.
        self._offsets.pop(key, None)
        self._offsets[key] = (offsets.key, keep)
        while len(self._offsets) > OFFSETS:
            del self._offsets[next(iter(self._offsets))]

    def read_call(
        self,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        given: Any,
        options: Mapping[str, Any],
        lse: Tensor | None,
    ) -> AttentionCall:
        """Return the AttentionCall of implementation(module, *tensors, given, **options).

        `given` is the attention mask: a tensor, a LazyMask, None, or the block mask of flex
        attention.
        """
        queries, keys, values = torch_modes.cast_for_autocast(*tensors)
        # The option of the call comes before the module's own setting.
        is_causal = options.get("is_causal")
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        # Describe the mask, each implementation in its own way.
        describe = _DESCRIBE["flash" if "flash" in implementation else implementation]
        passed = PassedMask(
            module, queries.shape[-2], keys.shape[-2], given, bool(is_causal), options
        )
        described = describe(self, passed)

        # Add the position bias, if the model passes one besides the mask.
        bias = described.bias
        added = options.get("position_bias")
        if added is not None:
            position_bias: Bias | None
            # With gradients an edit runs this definition, and learns by the bias.
            if added.requires_grad and torch.is_grad_enabled():
                position_bias = from_additive(added[..., : described.keys])
            else:
                # One row does not show the bias of later keys: pass the earlier bias on.
                earlier = self._biases.get(id(module))
                position_bias = self._translations.once(
                    module, added, lambda: bias_of(added.detach()[..., : described.keys], earlier)
                )
                self._biases[id(module)] = position_bias
            bias = position_bias if bias is None else bias

        # Number the keys from the beginning of the text, and hide those that the cache has dropped.
        batch, heads, rows, _ = queries.shape
        mask = described.mask
        if described.evicted:
            size = (rows, described.evicted + described.keys)
            mask = hide_first_keys(mask, described.evicted, size, batch=batch, heads=heads)

        # sdpa refuses softcap and s_aux, or, before 5.0, ignores them.
        has_extras = implementation != "sdpa"
        attention = self._definition(
            options.get("scaling"),
            options.get("softcap") if has_extras else None,
            options.get("s_aux") if has_extras else None,
            bias,
            mask,
        )
        dropout = float(options.get("dropout") or 0.0)

        # Cut off the unwritten end of a cache of fixed size.
        if described.keys < keys.shape[-2]:
            keys = keys[:, :, : described.keys]
            values = values[:, :, : described.keys]
        numbers = tuple(range(heads))
        return AttentionCall(
            queries,
            keys,
            values,
            attention,
            numbers,
            dropout,
            lse,
            described.evicted,
            keys_depend_on_text=True,
        )

    def _definition(
        self,
        scale: float | None,
        softcap: float | None,
        sink: Tensor | None,
        bias: Bias | None,
        mask: Mask,
    ) -> Attention:
        """Return a definition, the object of the layer before if it has the same parts.

        Reuse one object, so that the equality test is an identity test.
        """
        last = self._last
        if (scale, softcap) != (last.scale, last.softcap) or any(
            one is not other
            for one, other in ((sink, last.sink), (bias, last.bias), (mask, last.mask))
        ):
            self._last = Attention(scale=scale, softcap=softcap, sink=sink, bias=bias, mask=mask)
        return self._last

    # --------------------------------------------------------------------- masks, by implementation

    def sdpa(self, passed: "PassedMask") -> MaskDescription:
        """Describe the mask of `sdpa`; without a mask tensor it is causal if the module is."""
        rows = passed.rows
        columns = passed.columns
        if passed.given is not None:
            return self._mask_tensor(passed)
        if not passed.is_causal:
            return MaskDescription(everyone, columns)
        # Of a cache that is longer than its text, as many keys are visible as there are queries.
        written = columns if rows == 1 else min(rows, columns)
        evicted = self._remembered(passed)[0]
        return MaskDescription(causal, written, evicted)

    def eager(self, passed: "PassedMask") -> MaskDescription:
        """Describe the mask of `eager`, which applies the mask it is passed and nothing else."""
        if passed.given is not None:
            return self._mask_tensor(passed)
        # For a single query, causal and everyone are the same mask.
        mask = causal if passed.is_causal and passed.rows == 1 else everyone
        return MaskDescription(mask, passed.columns)

    def flash(self, passed: "PassedMask") -> MaskDescription:
        """Describe the mask of flash attention: causality, a window, packed sequences and
        padding.
        """
        options = passed.options
        columns = passed.columns
        evicted, keep = self._remembered(passed, passed.given)
        mask: Mask = causal if passed.is_causal else everyone
        if options.get("sliding_window") is not None:
            mask = mask & window(options["sliding_window"])
        if options.get("cu_seq_lens_q") is not None:  # several texts packed in one sequence
            # The inner boundaries tell which text each position belongs to.
            starts = options["cu_seq_lens_q"][1:-1].long()
            positions = torch.arange(passed.rows, device=starts.device)
            mask = mask & Documents(torch.searchsorted(starts, positions, right=True)[None])
        # Padding counts from the first token of the text, evicted keys included.
        if keep is not None:
            mask = mask & padding_mask(pad_to(keep, evicted + columns))
        return MaskDescription(mask, columns, evicted)

    def flex(self, passed: "PassedMask") -> MaskDescription:
        """Describe the mask of flex attention by the function of its block mask."""
        # Without a block mask, flex attention applies what it is passed as eager does.
        if passed.given is None or isinstance(passed.given, Tensor):
            return self.eager(passed)
        mask = FunctionMask(passed.given.mask_mod, passed.rows - passed.columns)
        return MaskDescription(mask, passed.columns)

    def _remembered(self, passed: "PassedMask", keep: Any = None) -> tuple[int, Any]:
        """Return the number of evicted keys and the padding of the latest mask of this size."""
        config = getattr(passed.module, "config", None)
        return self._offsets.get((id(config), passed.rows, passed.columns), (0, keep))

    def _mask_tensor(self, passed: "PassedMask") -> MaskDescription:
        given = passed.given
        # A mask that nobody wrote to is described without being written out.
        if isinstance(given, LazyMask):
            if not given.overwritten:
                return given.description
            given = given.dense
        mask, bias = self._translations.once(passed.module, given, lambda: read_mask(given))
        return MaskDescription(mask, passed.columns, bias=bias)


class PassedMask(NamedTuple):
    """What an attention function is passed of its mask."""

    module: nn.Module
    rows: int
    columns: int
    given: Any
    """A tensor, a LazyMask, the block mask of flex attention, or None."""
    is_causal: bool
    options: Mapping[str, Any]


_DESCRIBE: dict[str, Callable[..., MaskDescription]] = {
    "sdpa": DefinitionReader.sdpa,
    "eager": DefinitionReader.eager,
    "flash": DefinitionReader.flash,
    "flex_attention": DefinitionReader.flex,
}


ROWS = 1024  # compared at once


def bias_of(added: Float[Tensor, "#batch heads query key"], earlier: Bias | None) -> Bias | None:
    """Return an added position bias as a function of the distance where possible, in memory that
    grows with n.

    Return None if nothing is added. One row, of a generated token, does not show the bias of later
    keys, which the bias of the earlier call may contain.
    """
    if not added.any():
        return None
    # A bias that differs between sequences or along a diagonal is kept as it is.
    if len(added) > 1 or not _depends_on_distance(added[0]):
        return from_additive(added)
    # The last row has the bias of the keys up to the query, the first row that of keys ahead.
    heads, queries, keys = added.shape[1:]
    ahead = added[0, :, 0, keys - queries + 1 :]
    # Take the bias of keys further ahead from the earlier call.
    if isinstance(earlier, Relative) and earlier.table.shape[0] == heads:
        ahead = torch.cat(
            [ahead, earlier.table[:, earlier.table.shape[1] // 2 + 1 :][:, ahead.shape[1] :]], 1
        )
    table = torch.cat([added[0, :, -1], ahead[:, : keys - 1]], 1)
    # Distances that no call has shown get the last number.
    missing = 2 * keys - 1 - table.shape[1]
    return Relative(torch.cat([table, table[:, -1:].expand(heads, missing)], 1))


def _depends_on_distance(added: Float[Tensor, "heads query key"]) -> bool:
    """Return whether each diagonal holds one number."""
    last = added.shape[1] - 1
    # Compare each row with the row before, moved by one key.
    return all(
        torch.equal(
            added[:, row + 1 : min(row + ROWS, last) + 1, 1:],
            added[:, row : min(row + ROWS, last), :-1],
        )
        for row in range(0, last, ROWS)
    )
