"""A tensor that grows token by token."""

from jaxtyping import Shaped
from torch import Tensor


class Growing:
    """A copy of `first`, to which more is put along one axis. Its memory doubles, so that a token costs a token."""

    def __init__(self, first: Shaped[Tensor, "..."], axis: int) -> None:
        self.axis, self.size = axis, first.shape[axis]
        self.memory = first.detach().clone()  # what is given may be a view of memory that is written again

    @property
    def tensor(self) -> Shaped[Tensor, "..."]:
        return self.memory.narrow(self.axis, 0, self.size)

    def append(self, more: Shaped[Tensor, "..."]) -> None:
        size = self.size + more.shape[self.axis]
        if size > self.memory.shape[self.axis]:
            shape = list(self.memory.shape)
            shape[self.axis] = 2 * size
            larger = self.memory.new_empty(shape)
            larger.narrow(self.axis, 0, self.size).copy_(self.tensor)
            self.memory = larger
        self.memory.narrow(self.axis, self.size, size - self.size).copy_(more)
        self.size = size
