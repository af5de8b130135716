"""The decoder one position at a time, for several hypotheses of each sentence of a batch.

Keys and values are kept where they were computed, in the slot of the hypothesis that made them.
When hypotheses are dropped or divide, nothing is moved: a table says which slot of each position is
a hypothesis's own. Copying would read and write all keys and values once more at each position, and
reading them is what attention takes its time for. All queries of a sentence are multiplied with all
its keys, and each hypothesis picks its own logits.

No translation depends on its batch. Rows of a product are computed alike, bit for bit, when their
number is a multiple of 4, so it always is; source lengths are padded to multiples of 16, the width
of the widest vectors, and zeros beyond do not change a sum; the encoder sees only sentences of one
padded length together; what translations begin with is computed in one pass, for sentences whose
sources have one padded length and whose prefixes have one length. `tests/unit/test_steps.py` holds
it to this.
"""

import copy
import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear, pad

from edgewise.attention import RelationAttention, RelativePositions, relation_attention
from edgewise.data.batches import padded
from edgewise.data.vocabulary import PAD
from edgewise.decoding.fused import FusedCrossAttention, FusedDecoder, FusedSelfAttention
from edgewise.decoding.sources import as_read, seen
from edgewise.model.layers import CrossAttention, DecoderLayer
from edgewise.model.transformer import Transformer, sinusoids

ROWS, WIDTH = 4, 16
FIRST_CAPACITY = 16
# Batched products of fewer multiplications are computed by another kernel of PyTorch's.
LEAST_PRODUCT = 400


def up(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def wide(rows: Sequence[Sequence[int]], size: int) -> Int[Tensor, "some size"]:
    """Rows with END after each, then PAD up to the size."""
    tokens = torch.from_numpy(padded(rows))
    return pad(tokens, (0, size - tokens.shape[1]), value=PAD)


def encode(
    model: Transformer, sources: Sequence[Sequence[int]]
) -> list[tuple[list[int], Float[Tensor, "some n d_model"], list[int]]]:
    """For sentences of each padded length: which they are, the encoder's output, their lengths."""
    groups: dict[int, list[int]] = {}
    for i, source in enumerate(sources):
        groups.setdefault(up(len(source) + 1, WIDTH), []).append(i)
    results = []
    for size, chosen in groups.items():
        tokens = wide([sources[i] for i in chosen], size).to(model.embedding.weight.device)
        lengths = [len(as_read(sources[i], model.settings)) for i in chosen]
        results.append((chosen, model.encode(tokens, seen(tokens, model.settings)), lengths))
    return results


class Steps:
    """The state of a search: what the decoder has seen of each hypothesis."""

    def __init__(self, decoder: FusedDecoder, sources: Sequence[Sequence[int]], slots: int) -> None:
        self.decoder, self.slots = decoder, slots
        self.batch, self.length = len(sources), 0
        self._shared = 0  # positions at the start that all hypotheses of a sentence share
        device, dtype = decoder.embedding.device, decoder.embedding.dtype
        encoded = encode(decoder.model, sources)
        heads, d_head = decoder.heads, decoder.d_model // decoder.heads
        n_source = max(
            up(-(-LEAST_PRODUCT // (slots * d_head)), WIDTH),
            *(memory.shape[1] for _, memory, _ in encoded),
        )
        self._memory = [
            torch.zeros(2, self.batch, heads, n_source, d_head, dtype=dtype, device=device)
            for _ in decoder.layers
        ]
        self._source_mask = torch.full(
            (self.batch, 1, 1, n_source), -math.inf, dtype=dtype, device=device
        )
        for chosen, memory, lengths in encoded:
            rows, n = torch.tensor(chosen, device=device), memory.shape[1]
            for kept, layer in zip(self._memory, decoder.layers, strict=True):
                both = linear(memory, layer.cross.key_value, layer.cross.key_value_bias)
                by_head = both.view(*memory.shape[:2], 2, heads, -1)
                kept[:, rows, :, :n] = by_head.permute(2, 0, 3, 1, 4)
            for i, length in zip(chosen, lengths, strict=True):
                self._source_mask[i, ..., :length] = 0
        # Of each layer: keys and values, sentence, head, position and slot (none where positions
        # are shared), feature.
        self._seen = [
            torch.empty(2, self.batch, heads, 0, d_head, dtype=dtype, device=device)
            for _ in decoder.layers
        ]
        # Of each layer: keys and values, sentence and head, label, feature.
        self._labels = [layer.attention.labels[:, 0, :0] for layer in decoder.layers]
        # Of each position, which slot is that of the hypothesis, counted from the first of all.
        self._lineage = torch.empty(self.batch, 1, slots, 0, dtype=torch.int64, device=device)
        self._slots = torch.arange(slots, device=device)
        self._waves = torch.empty(0, 0, dtype=dtype, device=device)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences only, which may repeat."""
        index = sentences.to(self._source_mask.device)
        self.batch = len(index)
        self._memory = [kept.index_select(1, index) for kept in self._memory]
        self._seen = [seen.index_select(1, index) for seen in self._seen]
        self._source_mask = self._source_mask.index_select(0, index)
        self._lineage = self._lineage.index_select(0, index)
        if self._labels[0].shape[1] < self.batch * self.decoder.heads:
            self._repeat_labels()

    def fork(self, sentences: Int[Tensor, " chosen"]) -> "Steps":
        """Return a copy that goes on with these sentences, which may repeat."""
        other = copy.copy(self)
        other._labels = [*self._labels]
        other.keep(sentences)
        return other

    def prefill(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "batch padded d_model"]:
        """Compute what each sentence begins with in one pass, before any step.

        Return the decoder's output after each token, and after padding.
        """
        n, model, device = tokens.shape[1], self.decoder.model, self.decoder.embedding.device
        self.length = self._shared = n
        self._lineage = torch.arange(n, device=device).repeat(self.batch, 1, self.slots, 1)
        tokens = pad(tokens.to(device), (0, up(n, WIDTH) - n), value=PAD)
        x = model.embed(tokens, model.target_embedding)
        for number, layer in enumerate(model.decoder):
            assert isinstance(layer, DecoderLayer)
            attend = partial(self._attend_prefix, layer.attention, number)
            x = layer.compose(x, attend, partial(self._cross_prefix, layer.cross, number))
        result: Tensor = model.decoder_norm(x)
        return result

    def __call__(
        self,
        tokens: Int[Tensor, "batch slots"],
        parents: Int[Tensor, "batch slots"] | None,
    ) -> Float[Tensor, "rows d_model"]:
        """The decoder's output for the next token of each hypothesis; rows beyond batch * slots
        are padding. parents: the slots that the hypotheses continue; None: each its own.
        """
        decoder = self.decoder
        rows, device = self.batch * self.slots, decoder.embedding.device
        x = decoder.embedding.new_zeros(up(rows, ROWS), decoder.d_model)
        torch.index_select(decoder.embedding, 0, tokens.flatten().to(device), out=x[:rows])
        x.mul_(math.sqrt(decoder.d_model))
        if decoder.sinusoids:
            x.add_(self._sinusoids(self.length))
        self._grow(None if parents is None else parents.to(device))
        lineage = self._lineage[..., : self.length].expand(-1, decoder.heads, -1, -1)
        for number, layer in enumerate(decoder.layers):
            first, second, third = layer.norms
            if decoder.norm_before:
                x = x + self._attend(layer.attention, number, first(x), lineage)
                x = x.add_(self._cross(layer.cross, number, second(x)))
                x = x.add_(layer.feed_forward(third(x)))
            else:
                x = first(self._attend(layer.attention, number, x, lineage).add_(x))
                x = second(self._cross(layer.cross, number, x).add_(x))
                x = third(layer.feed_forward(x).add_(x))
        return x if decoder.last_norm is None else decoder.last_norm(x)

    def _sinusoids(self, position: int) -> Float[Tensor, " d_model"]:
        if len(self._waves) <= position:
            size = max(64, 2 * position)
            self._waves = sinusoids(size, self.decoder.d_model, self.decoder.embedding.device)
        return self._waves[position]

    def _grow(self, parents: Tensor | None) -> None:
        """One position more."""
        capacity = self._lineage.shape[3]
        if self.length == capacity:
            more = max(FIRST_CAPACITY, (capacity - self._shared) // 4)
            self._lineage = pad(self._lineage, (0, more))
            for number, seen in enumerate(self._seen):
                size = seen.shape[3] + more * self.slots
                new = seen.new_empty(*seen.shape[:3], size, seen.shape[4])
                new[:, :, :, : seen.shape[3]] = seen
                self._seen[number] = new
            self._repeat_labels()
        if parents is not None and self.length:
            past = self._lineage[..., : self.length]
            past.copy_(past.gather(2, parents[:, None, :, None].expand_as(past)))
        self._lineage[..., self.length] = self._slots + self._entries
        self.length += 1

    @property
    def _entries(self) -> int:
        """Keys of a sentence and head: one a position and slot, or a position that is shared."""
        return self._shared + (self.length - self._shared) * self.slots

    def _repeat_labels(self) -> None:
        """Copy the tables of each head for each sentence: no more rows than positions."""
        size = self._lineage.shape[3]
        for number, layer in enumerate(self.decoder.layers):
            labels = layer.attention.labels[:, None, :, -size:]
            every = labels.expand(-1, self.batch, self.decoder.heads, -1, -1)
            self._labels[number] = every.flatten(1, 2)

    def _attend(
        self,
        layer: FusedSelfAttention,
        number: int,
        x: Float[Tensor, "rows d_model"],
        lineage: Int[Tensor, "batch head slots n"],
    ) -> Float[Tensor, "rows d_model"]:
        batch, slots, heads, n = self.batch, self.slots, self.decoder.heads, self.length
        rows, near, end = batch * slots, min(layer.labels.shape[2], n), self._entries
        mixed = layer.into(x)[:rows].view(batch, slots, 3, heads, -1).permute(2, 0, 3, 1, 4)
        seen = self._seen[number]
        seen[:, :, :, end - slots : end] = mixed[1:]
        keys, values = seen[:, :, :, :end].flatten(1, 2)
        query = mixed[0].reshape(batch * heads, slots, -1)
        logits = every = torch.bmm(query, keys.mT).view(batch, heads, slots, -1)
        if slots > 1:
            logits = every.gather(3, lineage)
        if near:
            key_labels, value_labels = self._labels[number][:, : batch * heads, -near:]
            of_labels = torch.bmm(query, key_labels.mT).view(batch, heads, slots, near)
            logits[..., -near:].add_(of_labels)
        weights = own = torch.softmax(logits, dim=-1)
        if slots > 1:
            weights = every.zero_().scatter_(3, lineage, own)
        output = torch.bmm(weights.flatten(0, 1), values)
        if near:
            last = own[..., -near:].reshape(batch * heads, slots, near)
            output.baddbmm_(last, value_labels)
        result = torch.zeros_like(x)
        by_head = output.view(batch, heads, slots, -1)
        result[:rows].view(batch, slots, heads, -1).copy_(by_head.transpose(1, 2))
        return layer.out(result)

    def _cross(
        self, layer: FusedCrossAttention, number: int, x: Float[Tensor, "rows d_model"]
    ) -> Float[Tensor, "rows d_model"]:
        batch, slots, heads = self.batch, self.slots, self.decoder.heads
        rows = batch * slots
        query = layer.query(x)[:rows].view(batch, slots, heads, -1).transpose(1, 2)
        keys, values = self._memory[number].flatten(1, 2)
        logits = torch.bmm(query.reshape(batch * heads, slots, -1), keys.mT)
        by_sentence = logits.view(batch, heads, slots, -1)
        by_sentence += self._source_mask
        weights = torch.softmax(logits, dim=-1)
        output = torch.bmm(weights, values).view(batch, heads, slots, -1)
        result = torch.zeros_like(x)
        result[:rows].view(batch, slots, heads, -1).copy_(output.transpose(1, 2))
        return layer.out(result)

    def _attend_prefix(
        self, layer: RelationAttention, number: int, x: Float[Tensor, "batch n d_model"]
    ) -> Float[Tensor, "batch n d_model"]:
        query, key, value = layer.project(x)
        self._seen[number] = torch.stack((key, value))[:, :, :, : self.length]
        output = relation_attention(
            *(query, key, value, RelativePositions(layer.max_distance or 0)),
            key_table=layer.key_table,
            value_table=layer.value_table,
            causal=True,
        )
        return layer.merge(output)

    def _cross_prefix(
        self, layer: CrossAttention, number: int, x: Float[Tensor, "batch n d_model"]
    ) -> Float[Tensor, "batch n d_model"]:
        query = layer.query(x).unflatten(-1, (layer.heads, -1)).transpose(1, 2)
        key, value = self._memory[number]
        output = relation_attention(query, key, value, None, mask=self._source_mask == 0)
        result: Tensor = layer.output(output.transpose(1, 2).flatten(2))
        return result
