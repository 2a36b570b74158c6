"""Edit models of transformers through its attention interface, as a watch sees them.

A call whose context alone is edited runs the model's own attention function. Any other call is read
as a definition, edited, and run by `attend`; the definition of each attention is compared once with
what its own function computes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import transformers
from torch import nn

from ..engines import attend
from ..interception.huggingface import interception
from ..interception.huggingface.interception import Interceptor, ModelCall, Result, weights_of
from ..interception.huggingface.proof import OutputChecks
from ..interception.huggingface.transformers_internals import weights_are_requested
from ..interception.run_tracker import Bypass
from ..recording.attention_call import AttentionCall
from ..recording.names import Modules
from .edits import Part
from .session import EditSession

OLDEST = 5  # version of transformers
LONG = (
    4096**2
)  # scores of a head beyond which an eager attention is not run once more, to be compared


class EditedModel(Interceptor):
    """One model whose attentions are edited."""

    order = 0  # before a watch, which records the edited call

    def __init__(self, attentions: Mapping[str, nn.Module], session: EditSession) -> None:
        super().__init__(attentions, session.text)
        self.session = session
        self.checks = OutputChecks()

    def is_active(self) -> bool:
        return self.session.is_active()

    def report_bypass(self, bypass: Bypass) -> None:
        self.session.refuse_bypass(bypass)

    def run(self, call: ModelCall, following: Callable[[ModelCall], Result]) -> Result:
        """Run the edited call, and multiply the context of muted heads."""
        name = self.name(call.module)
        edits = self.session.begin(name)
        if not edits.every and not self.session.follows_all:
            return following(call)
        value_set = self.count_values(call)
        call = call._replace(edits=(*call.edits, *(one.edit for one in edits.every)))
        described: AttentionCall | None = None
        if not edits.every or not edits.needs_context_only:
            described = call.describe(self.reader, None)._replace(
                across=self.cross[id(call.module)]
            )
            changed = self.session.change(name, described, value_set)
            if changed is not described:
                self._compare(name, call, described)
                call = self._edited(name, call, described, changed)
        output, weights = following(call)
        context = self.session.finish(name, described, output.transpose(1, 2), value_set)
        return context.transpose(1, 2), weights

    def _edited(
        self, name: str, call: ModelCall, described: AttentionCall, changed: AttentionCall
    ) -> ModelCall:
        """Return the call that computes `changed`: by the model's own function if the definition is
        the same.
        """
        own_keys = all(edit.changes is not Part.TENSORS for edit in call.edits)
        same = (
            changed.attention is described.attention and changed.keys.shape == described.keys.shape
        )
        if same and call.run_edited is None:
            keys = changed.keys
            written = changed.keys.shape[-2]
            if (
                written < call.tensors[1].shape[-2]
            ):  # a cache of fixed size, whose end is not written yet
                keys = call.tensors[1].clone()
                keys[:, :, :written] = changed.keys
            tensors = changed.queries, keys, call.tensors[2]
            return call._replace(tensors=tensors, described=changed, own_keys=own_keys)
        wants_weights = weights_are_requested(call.options)

        def run() -> Result:
            definition = changed.attention_over_present_keys
            context = attend(
                changed.queries, changed.keys, changed.values, definition, dropout=changed.dropout
            )
            weights = weights_of(name, changed) if wants_weights else None
            return context.transpose(1, 2).contiguous(), weights

        return call._replace(described=changed, own_keys=own_keys, run_edited=run)

    @torch.no_grad()
    def _compare(self, name: str, call: ModelCall, described: AttentionCall) -> None:
        """Compare the definition that was read with the model's own function, once for each kind of
        call.
        """
        if call.described is not None or self.checks.is_known(
            call.module, described, call.implementation
        ):
            return
        queries, keys = described.size
        if call.implementation == "eager" and queries * keys > LONG:
            return
        options = {key: value for key, value in call.options.items() if key != "output_attentions"}
        output, _ = call._replace(options=options).run()
        self.checks.add(name, call.module, described, output, call.implementation)


@contextmanager
def intercepting(
    modules: Modules, attentions: Mapping[str, nn.Module], session: EditSession
) -> Iterator[None]:
    """Edit the calls of these attentions while the block runs, then check the definitions that were
    read.

    Raise a ValueError if a definition does not fit the output of the model's own function, or if
    transformers is older than the versions that edits are tested with.
    """
    if int(transformers.__version__.partition(".")[0]) < OLDEST:
        raise ValueError(
            f"ts.edit needs transformers {OLDEST} or newer, and {transformers.__version__} is "
            "installed: "
            "pip install --upgrade transformers"
        )
    model = EditedModel(attentions, session)
    with interception.intercepting(modules, model):
        yield
        model.checks.verify()
