"""`EditHandler`: pass the calls of a model's attentions through the edits of one block."""

from torch import Tensor

from ..interception.interceptor import EDIT, Bypass, HandledCall, Handler
from .edits import Frozen, Mute
from .session import EditSession


class EditHandler(Handler):
    """Change each call by the edits of a session, and what it returned by those that mute heads."""

    order = EDIT

    def __init__(self, session: EditSession) -> None:
        self.session = session
        self.text = session.text
        self.thread = session.thread

    def is_active(self) -> bool:
        return self.session.is_active()

    def report_bypass(self, bypass: Bypass) -> None:
        self.session.refuse_bypass(bypass)

    def before(self, call: HandledCall) -> None:
        edits = self.session.begin(call.name)
        if not edits and not self.session.needs_positions:
            return
        call.made.edits += tuple(one.edit for one in edits)
        # The model's own function runs where only heads are muted, and nobody needs to know more.
        if edits and all(isinstance(one.edit, Mute) and one.edit.by == "zero" for one in edits):
            return
        call.before_change = call.describe()
        changed = self.session.change(call.name, call.before_change, call.value_set)
        if changed is not call.before_change:
            frozen = any(isinstance(one.edit, Frozen) for one in edits)
            call.made.change(call, changed, own_keys=not frozen)

    def after(self, call: HandledCall, output: Tensor) -> Tensor:
        if not self.session.of(call.name):
            return output
        axis = call.made.head_axis
        context = output.transpose(1, axis)
        found = self.session.finish(call.name, call.before_change, context, call.value_set)
        return output if found is context else found.transpose(1, axis)
