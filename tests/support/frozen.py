"""A model made affine: norms keep the denominators, heads the contexts and feed-forwards the outputs of a run before.

Then what one author wrote can be taken away, and what is missing at the end is that author's part, exactly. Plain hooks
of torch, which know nothing of how the library finds the same numbers.
"""

from contextlib import ExitStack, contextmanager

import torch


def tensor_of(output):
    return output[0] if isinstance(output, tuple) else output


def is_norm(module):
    return "Norm" in type(module).__name__ and not module._modules


def is_centred(module):
    return "LayerNorm" in type(module).__name__ and "T5" not in type(module).__name__


@contextmanager
def hooked(hooks):
    with ExitStack() as undo:
        for module, hook in hooks:
            undo.callback(module.register_forward_hook(hook).remove)
        yield


class Affine:
    """Runs of `call()` in which the modules of a model are frozen; without the writing of some authors."""

    def __init__(self, model, call, contexts, outputs):
        self.model, self.call = model, call
        self.contexts = contexts  # the output projections, by name, whose input is frozen
        self.outputs = outputs  # other modules whose output is frozen, by name
        self.norms = [module for module in model.modules() if is_norm(module)]
        self.seen = {}
        with ExitStack() as undo:
            for module in self.norms:
                undo.callback(module.register_forward_hook(self.note).remove)
            for module in self.outputs.values():
                undo.callback(module.register_forward_hook(self.note).remove)
            for module in self.contexts.values():
                undo.callback(module.register_forward_hook(self.note).remove)
            self.whole = call()

    def note(self, module, args, output):
        self.seen[module] = args[0].clone(), tensor_of(output).clone()

    def norm(self, module, args, output):
        given, returned = self.seen[module]
        x = args[0]
        if not is_centred(module):
            return x * returned / given
        deviation = (given.var(-1, unbiased=False, keepdim=True) + _eps(module)).sqrt()
        centred = (x - x.mean(-1, keepdim=True)) / deviation
        bias = getattr(module, "bias", None)
        weight = getattr(module, "weight", None)
        centred = centred if weight is None else centred * weight
        return centred if bias is None else centred + bias

    def without(self, name, features=None, *, call=None):
        """Return what a run returns in which the module of this name writes nothing, or its output projection takes
        zeros for some features."""
        hooks = [(module, self.norm) for module in self.norms]
        with ExitStack() as undo:
            undo.enter_context(hooked(hooks))
            for own, module in self.contexts.items():
                context = self.seen[module][0].clone()
                if own == name:
                    context[..., features] = 0
                undo.callback(module.register_forward_pre_hook(lambda _, args, kept=context: (kept,)).remove)
            for own, module in self.outputs.items():
                kept = self.seen[module][1] * (0 if own == name else 1)
                undo.callback(module.register_forward_hook(_returning(kept)).remove)
            return (call or self.call)()


def _returning(kept):
    def hook(module, args, output):
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    return hook


def _eps(module):
    return next(getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name))


def features_of(head, heads, width):
    each = width // heads
    return slice(head * each, (head + 1) * each)


def close(one, other, scale):
    """Whether two numbers agree, beside the size of what was added up. Models in float64 normalise in float32."""
    return abs(float(one) - float(other)) <= 2e-6 * max(float(scale), 1e-3)


def no_grad(function):
    return torch.no_grad()(function)
