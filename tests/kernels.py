"""Triton kernels in tests: on a GPU, or by triton's interpreter without one."""

import numpy
import pytest
import torch


def need_triton():
    """Skip the test where no triton kernel can run."""
    triton = pytest.importorskip("triton")
    if not torch.cuda.is_available() and triton.__version__ < "3.7" and numpy.__version__ >= "2.4":
        reason = "the interpreter of triton 3.6 converts arrays to numbers in a way that numpy 2.4 refuses"
        pytest.skip(reason, allow_module_level=True)
