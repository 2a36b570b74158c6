"""`ts.mute`: make edits that multiply the context of heads, or their distance from a mean."""

import math

from torch import nn

from ..anatomy import count_heads
from ..attention import require_real
from ..interception.found import find_attentions
from ..recording import Layers, Recording, select_layers
from ..words import hint, suggests
from .ablation import Ablate, Resample
from .edits import GUESSES, Heads, Mute, read_heads, read_layers

By = str | Recording | Resample
"""What remains of a head that is muted altogether."""
MEANS = ("zero", "mean")


class MuteEdits:
    """`ts.mute`: make edits that multiply the context of heads."""

    @suggests(
        "mute",
        "one edit takes several heads of a layer: mute(0, heads=[1, 2])",
        **GUESSES,
        factor="times=",
        value="by=",
    )
    def __call__(
        self, layers: Layers = None, heads: Heads = None, *, times: float = 0.0, by: By = "zero"
    ) -> Mute | Ablate:
        """Return the edit that multiplies the context of some heads by `times`, before W_O.

        Args:
            layers: names, patterns or numbers of attentions, as in `ts.watch`; None is all. Of a
                layer that a model runs several times in one forward pass, these edit every pass;
                "name.2" edits the second pass alone, as it is named in a recording, and "name.1"
                the first.
            heads: the numbers of the heads, -1 for the last; None is all.
            times: the factor; 0 switches the heads off.
            by: what remains at times=0: "zero", or "mean", the mean of the head's context over the
                queries of the prompt, of each sequence by itself and without padding. Generated
                tokens get the mean of their prompt. With another factor, the distance from the mean
                is multiplied. A prompt that is read in several forward passes is refused.
                A recording, by ts.watch(model, keep="steps"): the mean of the head's context over
                the counted positions of all its texts, the same at every position. Watch several
                texts in one block for the mean of a corpus. `ts.resample(recording)`: at each
                position the context of a random recorded one. Of either, layers=None and heads=None
                are all that were recorded.

        Raises:
            TypeError, ValueError: `times` is no finite number, or `by` none of the above; or the
                recording kept too little.

        Example:
            >>> import telescope as ts
            >>> print(ts.mute("decoder.1.cross", heads=[2, 4]))
            mute heads 2 and 4 of decoder.1.cross
        """
        if not math.isfinite(require_real("times", times)):
            raise ValueError(
                f"times={times} is not a finite number; 0 switches a head off, 1 leaves it as it is"
            )
        if isinstance(by, str):
            if by not in MEANS:
                raise ValueError(f'there is no by="{by}"; {hint(by, MEANS)}')
            return Mute(read_layers(layers), read_heads(heads), float(times), by)
        # A recording by itself stands for the mean of what it holds.
        if not isinstance(by, Recording | Resample):
            raise TypeError(
                f'by takes "zero", "mean", a recording or ts.resample(recording), not '
                f"{type(by).__name__}; for the mean of a corpus watch its texts in one block of "
                'ts.watch(model, keep="steps")'
            )
        recording, seed = (by, None) if isinstance(by, Recording) else by
        if recording.keep != "steps":
            raise ValueError(
                f'mute by a recording needs more than keep="{recording.keep}" has kept: record '
                'with ts.watch(model, keep="steps")'
            )
        return Ablate(read_layers(layers), read_heads(heads), recording, float(times), seed)

    def each(
        self, model: nn.Module, layers: Layers = None, *, times: float = 0.0, by: By = "zero"
    ) -> list[Mute | Ablate]:
        """Return one edit for each head of a model, of all passes through it, for `ts.effect`.

        Args:
            model: the model that will run.
            layers: names, patterns or numbers of attentions, as in `ts.watch`; None is all.
            times, by: as in `ts.mute`.

        Returns:
            One edit for each head, in the order of the model.

        Raises:
            ValueError: if a number of heads cannot be told before the model runs.

        Example:
            >>> import telescope as ts
            >>> config = ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)
            >>> model = ts.models.GPT(config)
            >>> [str(edit) for edit in ts.mute.each(model)]
            ['mute head 0 of blocks.0.self', 'mute head 1 of blocks.0.self']
        """
        found = find_attentions(model, "edit")
        edits = []
        for name in select_layers(list(found.attentions), layers, found.unwatched):
            count = count_heads(found.modules, found.attentions[name])
            # Some modules tell how many heads they have only by the shape of a call.
            if count is None:
                raise ValueError(
                    f'how many heads "{name}" has is not known before it runs; list them: '
                    "ts.mute(name, head)"
                )
            edits += [self(name, head, times=times, by=by) for head in range(count)]
        return edits


mute = MuteEdits()
