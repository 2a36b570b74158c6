"""The learning rate of a step."""

from math import cos, pi, sqrt

from .settings import Training


def learning_rate(step: int, settings: Training, steps: int) -> float:
    """That of step 1, 2, …, `steps`.

    It climbs in a line for `warmup` steps, and then

    inverse-sqrt  falls as 1 / √step. (Noam's d_model^-½ · min(step^-½, step · warmup^-1½), Vaswani et al. 2017,
                  equation 3, is the same with lr = (d_model · warmup)^-½.)
    cosine        falls along half a cosine, to its floor at step `decay`, and stays there
    constant      stays
    """
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    return settings.lr * max(settings.floor, _share(step, settings, steps))


def _share(step: int, settings: Training, steps: int) -> float:
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "inverse-sqrt":
        return sqrt(max(1, settings.warmup) / step)
    last = steps if settings.decay is None else settings.decay
    gone = min(1.0, (step - settings.warmup) / max(1, last - settings.warmup))
    return settings.floor + (1.0 - settings.floor) * (1.0 + cos(pi * gone)) / 2
