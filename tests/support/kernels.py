"""Triton kernels in tests: on a GPU, or by triton's interpreter without one."""

import numpy
import pytest
import torch
from packaging.version import Version


def need_triton():
    """Skip the test where no triton kernel can run."""
    triton = pytest.importorskip("triton")
    # As versions, not as strings: "3.10" < "3.7" would skip the tests of a newer triton.
    is_refused = Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4")
    if is_refused and not torch.cuda.is_available():
        reason = "the interpreter of triton 3.6 converts arrays to numbers in a way that numpy 2.4 refuses"
        pytest.skip(reason, allow_module_level=True)
