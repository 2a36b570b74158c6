"""Small models that see and hear: a vision transformer, a model of text and images, and one that reads sound."""

import torch
from torch import Tensor, nn

import telescope as ts
from telescope.layers import Attend, MultiHeadAttention

D = 8


class Vision(nn.Module):
    """Blocks of self-attention over vectors, such as patches of an image."""

    def __init__(self, *, mask: ts.Mask = ts.everyone, blocks: int = 2) -> None:
        super().__init__()
        attention = ts.Attention(mask=mask)
        self.blocks = nn.ModuleList(MultiHeadAttention(D, 2, attention=attention) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Sums(nn.Module):
    """Two heads whose weights are scores divided by their sum; all numbers are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.attention = Attend(), ts.Attention(normalize=ts.by_sum)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.abs().unflatten(-1, (2, -1)).transpose(1, 2)
        return self.attend(heads, heads.flip(-1), heads, self.attention)


class Captions(nn.Module):
    """Text that reads an image: self-attention of the image, of the text, and from the text to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text, self.cross = (MultiHeadAttention(D, 2) for _ in range(3))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return self.cross(self.text(text), self.image(image))


def vectors(n: int, *, batch: int = 1, seed: int = 0) -> Tensor:
    return 3 * torch.randn(batch, n, D, generator=torch.Generator().manual_seed(seed))


def filled(model: nn.Module) -> nn.Module:
    made = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in model.parameters():
            part.normal_(std=0.5, generator=made)
    return model.requires_grad_(False)
