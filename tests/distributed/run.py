"""Training runs in processes of their own: python run.py RUNS, or under torchrun.

RUNS is JSON, a list of [OUT, SETTINGS] or [OUT, SETTINGS, DEATH]; each run writes its losses to OUT/losses and its
model to OUT/model. DEATH is where the process kills itself, as kill -9 would: "training 5", after the loss of that
step is reported; "writing 6", when only some files of that checkpoint are written; "written 8", when the checkpoint
is complete, and the one before still exists.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1]))
import telescope as ts
from support.learning import learned, pairs, transformer
from telescope import training
from telescope.training import checkpoint, step

torch.set_num_threads(1)


def run(out, settings, death=""):
    """Train in float64: a bias of keys has no gradient except rounding, which AdamW makes as large as any other."""
    out, sharded = Path(out), []
    whole, step.shard = step.shard, lambda *given: sharded.append(whole(*given)) or sharded[0]
    prepare(*death.split())
    attention = learned() if settings.pop("learned", False) else ts.Attention()
    model = transformer(attention, dropout=settings.pop("dropout", 0.0)).double()
    data = training.Examples(*pairs(21))
    options = training.Training(**{"tokens": 96, "lr": 3e-3, "warmup": 3, "clip": 1.0, "log_every": 1} | settings)

    def validate(model):
        return {"loss": training.mean_loss(model, data, training.translation, options)}

    def report(event):
        with open(out / "losses", "a") as file:
            if isinstance(event, training.Logged):
                print("loss", event.step, repr(event.loss), file=file, flush=True)
            if isinstance(event, training.Validated):
                print("validation", event.step, repr(event.metrics["loss"]), file=file, flush=True)
            if isinstance(event, training.Saved) and event.step == 2:
                shutil.copytree(out / "checkpoints", out / "second" / "checkpoints")
            if isinstance(event, training.Finished):
                parameters = [parameter for learner in sharded for parameter in learner.parameters()]
                print("sharded", sum(isinstance(parameter, DTensor) for parameter in parameters), file=file)
        if isinstance(event, training.Logged) and death == f"training {event.step}":
            die()

    out.mkdir(parents=True, exist_ok=True)
    trained = training.train(model, data, training.translation, options, out, validate=validate, report=report)
    if os.environ.get("RANK", "0") == "0":
        trained.save(out / "model")


def prepare(when="", step="0"):
    def deadly(function, doomed):
        return lambda path, *rest, **how: die() if doomed(Path(path)) else function(path, *rest, **how)

    if when == "writing":
        new = f".step-{int(step):08d}.new-"
        checkpoint.write_json = deadly(checkpoint.write_json, lambda path: path.parent.name.startswith(new))
    if when == "written":
        old = f"step-{int(step) - 2:08d}"
        checkpoint.shutil.rmtree = deadly(checkpoint.shutil.rmtree, lambda path: path.name == old)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for job in json.loads(sys.argv[1]):
        if "RANK" in os.environ:
            run(*job)
            continue
        child = os.fork()  # what is imported need not be imported again
        if not child:
            run(*job)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
