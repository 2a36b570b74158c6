"""Libraries that nobody here wrote, in an environment of their own: make test-wild."""

import sys

import torch


def import_torchvision() -> None:
    """Import torchvision, also one that was built for a torch with CUDA beside a torch without.

    Its compiled operators cannot be loaded there. No model of these tests runs one, but some must have a name.
    """
    try:
        import torchvision
    except RuntimeError as problem:
        if "torchvision::nms does not exist" not in str(problem):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        import torchvision  # noqa: F401
    except ImportError:
        pass


import_torchvision()
