"""Batches by approximate length, in an order that is a pure function of seed, epoch and corpus."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.data.corpus import Split
from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.errors import SettingError

Indices = NDArray[np.integer[Any]]  # of pairs


@dataclass(frozen=True)
class Batch:
    """Token numbers, padded: source and target end with END, target_input begins with BEGIN."""

    source: NDArray[np.int64]
    target_input: NDArray[np.int64]
    target: NDArray[np.int64]

    @property
    def source_tokens(self) -> int:
        return int(np.count_nonzero(self.source != PAD))

    @property
    def target_tokens(self) -> int:
        return int(np.count_nonzero(self.target != PAD))


@dataclass(frozen=True)
class Epoch:
    """Which pairs make which batch: batch i has order[bounds[i] : bounds[i + 1]]."""

    order: Indices
    bounds: NDArray[np.int64]
    shuffled: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shuffled)

    def __getitem__(self, index: int) -> Indices:
        at = self.shuffled[index]
        return self.order[self.bounds[at] : self.bounds[at + 1]]


class Batches:
    """The batches of a split: rows x longest source <= limit, and the same for the target."""

    def __init__(self, split: Split, limit: int, seed: int) -> None:
        self.split, self.limit, self.seed = split, limit, seed
        source, target = split.lengths()
        self._index = np.int32 if len(split) < 1 << 31 else np.int64
        # END is a token of either side.
        self._source, self._target = source + 1, target + 1
        longest = int(max(self._source.max(initial=1), self._target.max(initial=1)))
        if longest > limit:
            raise SettingError(
                f"batch_tokens must be at least {longest}, the longest sentence of the corpus with "
                f"its end; got {limit} (or prepare the corpus with --max-tokens {limit - 1})"
            )
        if sum(part.pairs * part.weight for part in split.parts) < 1:
            raise SettingError(
                "the weights of the corpora must show at least one pair an epoch; got "
                + ", ".join(f"{part.pairs:,} pairs x {part.weight}" for part in split.parts)
            )
        self._cached: tuple[int, Epoch] | None = None

    def epoch(self, number: int) -> Epoch:
        """All batches of an epoch, in order."""
        if self._cached is None or self._cached[0] != number:
            self._cached = None  # its memory is needed for the next
            self._cached = (number, self._plan(number))
        return self._cached[1]

    def batch(self, pairs: Indices) -> Batch:
        """These pairs as padded arrays."""
        rows = [self.split.pair(int(index)) for index in pairs]
        source = padded([row[0] for row in rows])
        target = padded([row[1] for row in rows])
        target_input = np.empty_like(target)
        target_input[:, 0] = BEGIN
        target_input[:, 1:] = np.where(target[:, :-1] == END, PAD, target[:, :-1])
        return Batch(source, target_input, target)

    def tokens(self, pairs: Indices) -> tuple[int, int]:
        """Source and target tokens of these pairs, each end included."""
        return int(self._source[pairs].sum()), int(self._target[pairs].sum())

    def fill(self, number: int) -> float:
        """The part of an epoch's batches that is tokens, not padding."""
        epoch = self.epoch(number)
        tokens = sum(self.tokens(epoch.order))
        rows = np.diff(epoch.bounds)
        starts = epoch.bounds[:-1]
        longest_source = np.maximum.reduceat(self._source[epoch.order], starts)
        longest_target = np.maximum.reduceat(self._target[epoch.order], starts)
        return tokens / max(1, int((rows * (longest_source + longest_target)).sum()))

    def _plan(self, number: int) -> Epoch:
        random = np.random.default_rng([self.seed, number])
        order = self._chosen(random)
        random.shuffle(order)  # pairs of equal lengths meet others in each epoch
        source, target = self._source[order], self._target[order]
        # By source, then by target: up for odd sources, down for even ones, so that the target's
        # length has no jump where the source's changes.
        key = source * np.int64(1 << 32) + np.where(source % 2 == 1, target, -target)
        del source, target  # 36 million pairs make each array large
        order = order[np.argsort(key, kind="stable")]
        bounds = self._bounds(order)
        return Epoch(order, bounds, random.permutation(len(bounds) - 1))

    def _chosen(self, random: np.random.Generator) -> Indices:
        """Each pair as often as its part's weight: 2.5 is twice, and once more by chance."""
        chosen, begin = [], 0
        for part in self.split.parts:
            pairs = np.arange(begin, begin + part.pairs, dtype=self._index)
            begin += part.pairs
            whole, rest = divmod(part.weight, 1)
            times = int(whole) + (random.random(part.pairs) < rest if rest else 0)
            chosen.append(np.repeat(pairs, times))
        return np.concatenate(chosen)

    def _bounds(self, order: Indices) -> NDArray[np.int64]:
        """As many pairs in each batch as the limit allows."""
        source, target = self._source[order], self._target[order]
        bounds, begin = [0], 0
        while begin < len(order):
            most = self.limit // int(source[begin])  # sources only grow
            rows = np.arange(1, most + 1)[: len(order) - begin]
            longest = np.maximum(source[begin : begin + most], target[begin : begin + most])
            fits = rows * np.maximum.accumulate(longest) <= self.limit
            begin += int(fits.argmin()) if not fits.all() else len(fits)
            bounds.append(begin)
        return np.array(bounds)


def padded(rows: Sequence[Sequence[int] | NDArray[Any]]) -> NDArray[np.int64]:
    """Rows with END after each, then PAD up to the longest."""
    result = np.full((len(rows), max(map(len, rows)) + 1), PAD, dtype=np.int64)
    for row, tokens in zip(result, rows, strict=True):
        row[: len(tokens)] = tokens
        row[len(tokens)] = END
    return result


@dataclass(frozen=True)
class Position:
    """How far training has come: the next batch is this one of this epoch."""

    epoch: int = 0
    index: int = 0


def updates(
    batches: Batches, start: Position, size: int
) -> Iterator[tuple[dict[Position, Indices], Position]]:
    """For each update `size` batches, on and on over the epochs, and the position after it."""
    position = start
    while True:
        taken: dict[Position, Indices] = {}
        while len(taken) < size:
            epoch = batches.epoch(position.epoch)
            if position.index == len(epoch):
                position = Position(position.epoch + 1, 0)
                continue
            taken[position] = epoch[position.index]
            position = Position(position.epoch, position.index + 1)
        yield taken, position
