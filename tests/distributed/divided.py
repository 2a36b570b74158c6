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
from torch.nn.parallel import DistributedDataParallel

import mapping
import telescope as ts

IDS = torch.arange(24).remainder(23).view(2, 12)


def run(model, out, name):
    with torch.no_grad(), ts.watch(model) as recording:
        model(IDS)
    if distributed.get_rank() == 0:
        recording.save(f"{out}/{name}.telescope")
    ts.atlas(model, mapping.corpus(8), tokenizer=mapping.Letters(), shard=300, save_every=0.0, out=f"{out}/{name}")


def clip(wrap):
    """Train two steps on other batches in each process, clipped; return weights that must be alike everywhere."""
    torch.manual_seed(0)
    model = mapping.tiny_gpt()
    wrapped = wrap(model)
    health = ts.Health(wrapped, every=1, rules=(), tau=1.0)
    ids = (IDS + 3 * distributed.get_rank()) % 23
    for _ in range(2):
        wrapped(ids).sum().backward()
        health.step(ids)
    assert health.clipped
    weights = [layer.self_attention.W_qkv.weight.detach() for layer in model.blocks]
    return [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in weights]


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def check_clipped():
    """Every process of DDP and of FSDP must end with the same weights, and both with those of the other."""
    found = [clip(DistributedDataParallel), clip(shard)]
    gathered = [None, None]
    distributed.all_gather_object(gathered, found)
    for ddp, fsdp in gathered:
        for mine, its, other in zip(gathered[0][0], ddp, fsdp, strict=True):
            assert torch.equal(mine, its)
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


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
    check_clipped()
    distributed.barrier()
    distributed.destroy_process_group()
