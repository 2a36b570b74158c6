"""Compile models of transformers in tests, mostly without a compiler behind Dynamo."""

import torch
from torch._dynamo.utils import counters

from support.huggingface import transformers


def compiled(model, **options):
    """Return the model compiled. "eager" runs the graph as it was traced, and "aot_eager" as compilers get it, without
    writes in place. Tracing alone finds graph breaks, guards that compile again and wrong numbers; other backends take
    half as long again.
    """
    return torch.compile(model, **({"backend": "eager", "fullgraph": True} | options))


def config(backend="eager"):
    """Return the config by which `generate` compiles, on a CPU, too."""
    chosen = transformers.CompileConfig(backend=backend, mode=None, fullgraph=True)
    chosen._compile_all_devices = True
    return chosen


def graphs():
    """Return how many graphs were compiled since the fixture `own_compiler` began."""
    return counters["stats"]["unique_graphs"]
