"""Models on several processes: python -m torch.distributed.run --nproc-per-node 2 divided.py MODEL OUT.

Each rank watches and maps a model whose heads are divided by tensor parallelism, and one that FSDP shards. The first
writes OUT/tensor-parallel, OUT/fsdp (atlases), and OUT/tensor-parallel.telescope, OUT/fsdp.telescope (recordings).
"""

import sys
import warnings

import torch
import transformers
from torch import distributed
from torch.distributed.fsdp import fully_shard

import mapping
import telescope as ts

IDS = torch.arange(24).remainder(23).view(2, 12)


def run(model, out, name):
    with torch.no_grad(), ts.watch(model) as recording:
        model(IDS)
    if distributed.get_rank() == 0:
        recording.save(f"{out}/{name}.telescope")
    ts.atlas(model, mapping.corpus(8), tokenizer=mapping.Letters(), shard=300, save_every=0.0, out=f"{out}/{name}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder, out = sys.argv[1:]
    run(transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto"), out, "tensor-parallel")
    sharded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    run(sharded, out, "fsdp")
    distributed.barrier()
    distributed.destroy_process_group()
