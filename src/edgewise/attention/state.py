"""The keys and values of the positions seen so far, for decoding step by step."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.errors import ArgumentError


class AttentionState:
    """Keys and values that grow with each call of `RelationAttention`.

    The position of a new token is `length`, whatever the size of the buffer. With `max_length`
    the buffer is made once; without, it doubles when it is full.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        d_head: int,
        max_length: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        for name, size in (("batch", batch), ("max_length", max_length)):
            if size is not None and size < 0:
                raise ArgumentError(f"{name} must be 0 or more; got {size}")
        self.length = 0
        self.max_length = max_length
        shape = (2, batch, heads, max_length or 0, d_head)
        self._buffer = torch.empty(shape, dtype=dtype, device=device)

    @property
    def batch(self) -> int:
        return self._buffer.shape[1]

    def append(
        self,
        key: Float[Tensor, "batch head n_new d_head"],
        value: Float[Tensor, "batch head n_new d_head"],
    ) -> tuple[Float[Tensor, "batch head n d_head"], Float[Tensor, "batch head n d_head"]]:
        """Keep these, and return all that are kept."""
        if key.shape[0] != self.batch:
            raise ArgumentError(
                f"x must have the state's batch, {self.batch}; got {key.shape[0]} "
                "(state.reorder selects sentences)"
            )
        if key.dtype != self._buffer.dtype or key.device != self._buffer.device:
            # Under autocast the projections choose the dtype: an empty state follows.
            if self.length > 0:
                raise ArgumentError(
                    f"x must give keys like the state's, {self._buffer.dtype} on "
                    f"{self._buffer.device}; got {key.dtype} on {key.device}"
                )
            self._buffer = self._buffer.to(dtype=key.dtype, device=key.device)
        length = self.length + key.shape[2]
        if self.max_length is not None and length > self.max_length:
            raise ArgumentError(
                f"the state holds max_length={self.max_length} positions; got {self.length} + "
                f"{key.shape[2]} (new_state(batch, max_length=None) grows)"
            )
        new = torch.stack((key, value))
        if torch.is_grad_enabled() or self._buffer.requires_grad:
            # Autograd may have kept what was there: it must not be written over.
            self._buffer = torch.cat((self._buffer[:, :, :, : self.length], new), dim=3)
        else:
            if length > self._buffer.shape[3]:
                self._grow(max(length, 2 * self._buffer.shape[3]))
            self._buffer[:, :, :, self.length : length] = new
        self.length = length
        return self._buffer[0, :, :, :length], self._buffer[1, :, :, :length]

    def _grow(self, size: int) -> None:
        kept = self._buffer[:, :, :, : self.length]
        self._buffer = kept.new_empty(*kept.shape[:3], size, kept.shape[4])
        self._buffer[:, :, :, : self.length] = kept

    def reorder(self, index: Int[Tensor, " new_batch"]) -> None:
        """Sentence i becomes what sentence index[i] was: for beam search, or to drop some."""
        if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(
                f"index must be an int tensor [new_batch]; got {index.dtype} {list(index.shape)}"
            )
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.batch:
            raise ArgumentError(
                f"index must be of sentences 0 to {self.batch - 1}; "
                f"got {int(index.min())} to {int(index.max())}"
            )
        self._buffer = self._buffer.index_select(1, index.to(self._buffer.device))
