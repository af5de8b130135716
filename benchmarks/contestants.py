"""Who runs against edgewise in bench_attention.py: the ways others compute the same attention."""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from edgewise import RelativePositions, relation_attention


class Case:
    """Inputs of one size, and each contestant's forward pass on them."""

    def __init__(
        self,
        batch: int,
        heads: int,
        n: int,
        d_head: int,
        max_distance: int,
        *,
        causal: bool = False,
        per_head: bool = False,
        padding: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

        self.batch, self.heads, self.n, self.d_head = batch, heads, n, d_head
        self.max_distance, self.causal = max_distance, causal
        self.query, self.key, self.value = (parameter(batch, heads, n, d_head) for _ in range(3))
        table = (
            (heads, 2 * max_distance + 1, d_head) if per_head else (2 * max_distance + 1, d_head)
        )
        self.key_table, self.value_table = parameter(*table), parameter(*table)
        self.grad = torch.randn(batch, heads, n, d_head, generator=generator, dtype=dtype)
        self.labels = RelativePositions(max_distance).labels(n, n) if n <= 4096 else None
        # Every other sentence is a quarter shorter; a single one too.
        self.mask = None
        if padding:
            lengths = torch.full((batch,), n)
            lengths[::2] = n - n // 4
            self.mask = (torch.arange(n) < lengths[:, None])[:, None, None, :]
        self.hidden = torch.ones(n, n, dtype=torch.bool).triu(1) if causal and n <= 4096 else None

    def fused(self) -> Tensor:
        """PyTorch's fused attention, without positions."""
        return scaled_dot_product_attention(
            self.query, self.key, self.value, attn_mask=self.mask, is_causal=self.causal
        )

    def unfused(self) -> Tensor:
        """Plain attention as matmul, softmax, matmul."""
        return self._softmax(self.query @ self.key.mT) @ self.value

    def paper(self) -> Tensor:
        """Section 3.3: n products of [batch * head, d] and [d, n], over the [n, n, d] vectors."""
        edge_key, edge_value = self.key_table[self.labels], self.value_table[self.labels]
        by_position = self.query.permute(2, 0, 1, 3).reshape(self.n, -1, self.d_head)
        relative = by_position @ edge_key.mT
        relative = relative.view(self.n, self.batch, self.heads, self.n).permute(1, 2, 0, 3)
        weights = self._softmax(self.query @ self.key.mT + relative)
        by_position = weights.permute(2, 0, 1, 3).reshape(self.n, -1, self.n)
        relative = (by_position @ edge_value).view(self.n, self.batch, self.heads, self.d_head)
        return weights @ self.value + relative.permute(1, 2, 0, 3)

    def gather(self) -> Tensor:
        """What most toolkits do: [n, n, d] vectors in an einsum."""
        edge_key, edge_value = self.key_table[self.labels], self.value_table[self.labels]
        relative = torch.einsum("bhid,ijd->bhij", self.query, edge_key)
        weights = self._softmax(self.query @ self.key.mT + relative)
        return weights @ self.value + torch.einsum("bhij,ijd->bhid", weights, edge_value)

    def edgewise(self, method: str = "auto") -> Tensor:
        return relation_attention(
            self.query,
            self.key,
            self.value,
            RelativePositions(self.max_distance),
            key_table=self.key_table,
            value_table=self.value_table,
            mask=self.mask,
            causal=self.causal,
            method=method,
        )

    def backward(self, output: Tensor, *, tables: bool) -> tuple[Tensor, ...]:
        inputs = [self.query, self.key, self.value]
        if tables:
            inputs += [self.key_table, self.value_table]
        return torch.autograd.grad(output, inputs, self.grad)

    def needs(self, contestant: str) -> int:
        """Bytes of the largest tensors a contestant holds at once, forward and backward."""
        size = self.query.element_size()
        matrix = self.batch * self.heads * self.n * self.n * size
        edges = self.n * self.n * self.d_head * size
        return {
            "fused": 0,
            "unfused": 4 * matrix,
            # Two sets of edge vectors, their gradients, and about six matrices of logits.
            "paper": 4 * edges + 6 * matrix,
            "gather": 4 * edges + 6 * matrix,
            "edgewise": 0,
        }[contestant]

    def _softmax(self, logits: Tensor) -> Tensor:
        logits = logits * (1 / math.sqrt(self.d_head))
        if self.hidden is not None:
            logits = logits.masked_fill(self.hidden, -math.inf)
        if self.mask is not None:
            logits = logits.masked_fill(~self.mask, -math.inf)
        return logits.softmax(-1)
