"""The key-value cache of a decoder."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.attention import check
from edgewise.attention.relations import can_read_values
from edgewise.errors import ArgumentError

NewKeys = Float[Tensor, "batch head n_new d_head"]
AllKeys = Float[Tensor, "batch head n d_head"]


class AttentionState:
    """Keys and values of the positions so far; `RelationAttention` appends to it at each call.

    The position of a new token is `length`, whatever the size of the buffer. With `max_length`
    the buffer is allocated once; without, it doubles when it is full.
    """

    def __init__(
        self, batch: int, heads: int, d_head: int, max_length: int | None, like: Tensor
    ) -> None:
        for name, size in (("batch", batch), ("max_length", max_length)):
            if size is not None and size < 0:
                raise ArgumentError(f"{name} must be 0 or more; got {size}")
        self.length, self.max_length = 0, max_length
        self._buffer = like.new_empty(2, batch, heads, max_length or 0, d_head)
        # Keys and values so far, where autograd may have saved them; None: they are in the buffer.
        self._history: Tensor | None = None

    @property
    def batch(self) -> int:
        return self._buffer.shape[1]

    def append(self, key: NewKeys, value: NewKeys) -> tuple[AllKeys, AllKeys]:
        """Append keys and values; return all of them."""
        self._check(key)
        start, length, new = self.length, self.length + key.shape[2], torch.stack((key, value))
        past = self._buffer if self._history is None else self._history
        past = past[:, :, :, :start]
        if torch.is_grad_enabled() or (self._history is not None and self._history.requires_grad):
            # Not in place: autograd may have saved what is there.
            self._history, self.length = torch.cat((past, new), dim=3), length
            key, value = self._history
            return key, value
        size = self._buffer.shape[3]
        if length > size or self._history is not None:
            # The positions so far are copied to a buffer that is large enough.
            if length > size:
                size = max(length, 2 * size)
                self._buffer = past.new_empty(*past.shape[:3], size, past.shape[4])
            self._buffer[:, :, :, :start] = past
            self._history = None
        self._buffer[:, :, :, start:length], self.length = new, length
        return self._buffer[0, :, :, :length], self._buffer[1, :, :, :length]

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise ArgumentError(f"length must be in 0 to {self.length}; got {length}")
        self.length = length
        if self._history is not None:
            self._history = self._history[:, :, :, :length]

    def reorder(self, index: Int[Tensor, " new_batch"]) -> None:
        """Replace sequence i by sequence index[i]; the batch size becomes len(index).

        For beam search, or to drop sequences. The index is checked on CPUs only.
        """
        check.tensor("index", index, "an int tensor [new_batch]", (torch.int32, torch.int64), 1)
        if index.numel() and can_read_values(index):
            least, most = map(int, index.aminmax())
            if least < 0 or most >= self.batch:
                raise ArgumentError(
                    f"index must be of sequences 0 to {self.batch - 1}; got {least} to {most}"
                )
        index = index.to(self._buffer.device)
        if self._history is not None:
            self._history = self._history.index_select(1, index)
        self._buffer = self._buffer.index_select(1, index)

    def _check(self, key: Tensor) -> None:
        _, batch, heads, _, d_head = self._buffer.shape
        expected = "{}: batch, heads and d_head of the state (state.reorder selects sequences)"
        check.shape("keys of x", key, expected, (batch, heads, "n", d_head))
        if key.dtype != self._buffer.dtype or key.device != self._buffer.device:
            if self.length > 0:
                raise ArgumentError(
                    f"x must give keys like the state's, {self._buffer.dtype} on "
                    f"{self._buffer.device}; got {key.dtype} on {key.device}"
                )
            # Under autocast the projections choose the dtype.
            self._buffer = self._buffer.to(dtype=key.dtype, device=key.device)
        if self.max_length is not None and self.length + key.shape[2] > self.max_length:
            raise ArgumentError(
                f"the state holds max_length={self.max_length} positions; got {self.length} + "
                f"{key.shape[2]} (new_state(batch, max_length=None) grows)"
            )
