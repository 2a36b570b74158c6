"""Models on two processes: python divided.py MODEL OUT.

Each watches, maps and edits a model whose heads are divided by tensor parallelism, and one that FSDP shards. The
first writes OUT/tensor-parallel, OUT/fsdp (atlases), the same names with .telescope (recordings), and with .pt (the
logits of each edit).
"""

import os
import sys
import traceback
import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import telescope as ts
from support import mapping

IDS = torch.arange(24).remainder(23).view(2, 12)


@torch.no_grad()
def edited(model, whole=None):
    """Return the logits under edits that name heads of the whole model, of either process or of both.

    `whole` is a recording of the undivided model, to freeze; without one, the model's own is frozen.
    """
    with ts.watch(model, keep="queries-keys") as recording:
        model(IDS)
    other = IDS.flip(1)
    edits = {
        "nothing": ([], IDS),
        "mute both": ([ts.mute(0, heads=[1, -1], times=0.5), ts.mute(1, heads=2)], IDS),
        "mute by mean": ([ts.mute(1, heads=[0, 3], by="mean")], IDS),
        "hide in the last head": ([ts.hide(range(2, 5), heads=-1)], IDS),
        "boost": ([ts.boost(3, by=4.0, heads=[0, 2]), ts.mute(0)], IDS),
        "redefine": ([ts.redefine(1, lambda attention: replace(attention, scale=0.1))], IDS),
        "freeze one": ([ts.frozen(recording if whole is None else whole, layers=[0], heads=[2])], other),
        "freeze all": ([ts.frozen(recording)], other),
        "freeze the whole": ([ts.frozen(recording if whole is None else whole)], other),
    }
    found = {}
    for name, (own, ids) in edits.items():
        with ts.edit(model, *own):
            found[name] = model(ids).logits
    with ts.watch(model) as recorded, ts.edit(model, ts.mute(0, heads=3)):
        model(IDS)
    assert [str(edit) for edit in recorded.edits] == ["mute head 3 of layer 0"]
    found["each head"] = torch.tensor(ts.effect(model, IDS[:1], ts.mute.each(model), "loss").columns["loss"])
    return found


def run(model, out, name, whole):
    with torch.no_grad(), ts.watch(model, also="norms") as recording:
        model(IDS)
    found = edited(model, whole)
    if distributed.get_rank() == 0:
        recording.save(f"{out}/{name}.telescope")
        torch.save(found, f"{out}/{name}.pt")
    options = {"tokenizer": mapping.Letters(), "shard": 300, "save_every": 0.0, "out": f"{out}/{name}"}
    ts.atlas(model, mapping.corpus(8), **options)
    assert ts.atlas(model, mapping.corpus(8), **options).texts == 8  # all processes open what is finished

    # One number changes that the second process alone has: both must see it.
    weight = model.model.layers[-1].self_attn.q_proj.weight
    own = (weight.to_local() if hasattr(weight, "to_local") else weight).detach()
    own[-1, -1] += distributed.get_rank()
    with pytest.raises(ValueError, match="with other model weights;"):
        ts.atlas(model, mapping.corpus(8), **options)
    own[-1, -1] -= distributed.get_rank()


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


def work(folder, out, rank):
    """Do the work of one of two processes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    distributed.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    sharded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad(), ts.watch(sharded, keep="queries-keys") as whole:
        sharded(IDS)
    run(transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto"), out, "tensor-parallel", whole)
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    run(sharded, out, "fsdp", whole)
    check_clipped()
    distributed.barrier()
    distributed.destroy_process_group()


def start(folder, out, rank):
    """Start one of the processes as a copy of this one, which has imported everything."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(folder, out, rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    children = [start(*sys.argv[1:], rank) for rank in range(2)]
    codes = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(codes))
