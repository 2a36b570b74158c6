"""How well a GPT continues a text that it has just read: its loss on random tokens that come a
second time, and the head that finds them.
"""

import torch

from ...interception import watch
from ...models import GPT
from ...training import IGNORE

SEQUENCES = 16  # of random tokens
ONCE = 64  # tokens of a sequence, which come twice


def measure_repeats(model: GPT) -> dict[str, float]:
    """Return the loss on the second copy of random tokens, in nats a token, as "repeats", and the
    largest share of its weight that a head gives to what followed the first, as "induction".

    Random tokens come from no text: whoever predicts the second copy has looked at the first.
    """
    draw = torch.Generator().manual_seed(0)
    size = min(ONCE, model.config.max_positions // 2)
    once = torch.randint(model.config.vocabulary, (SEQUENCES, size), generator=draw)
    ids = torch.cat([once, once], 1).to(next(model.parameters()).device)
    # Position i predicts token i + 1; the first token of the second copy can be predicted by none.
    targets = torch.full_like(ids, IGNORE)
    targets[:, size:-1] = ids[:, size + 1 :]
    with torch.no_grad(), watch(model) as recording:
        loss = model.loss(ids, targets)
    share = max(head.induction for head in recording.heads())
    return {"repeats": loss.item(), "induction": share}
