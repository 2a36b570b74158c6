"""A driver of triton for machines without a GPU: kernels can be specialised for their arguments, but not run."""

from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


class Hopper:
    """The driver of a GPU that no kernel is run on."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def binder(kernel):
    """Return a function of a kernel's arguments and constants: as text, what triton compiles the kernel for.

    These are types, None, integers of 1 and of multiples of 16, aligned pointers and constants. The function is
    triton's own, of the driver that is active when it is first called.
    """
    bind = JITFunction(kernel.fn, **kernel.kwargs).create_binder()[-1]  # not interpreted

    def specialization(*arguments, **constants):
        _, specialized, _ = bind(*arguments, **constants)
        return repr(specialized)

    return specialization
