"""Which sentences are computed together: those of about one length, as many as fit."""

from collections.abc import Iterator, Sequence


def by_length(lengths: Sequence[int], most: int, rows: int) -> Iterator[list[int]]:
    """Numbers of sentences, longest first: at most so many, and padded at most `most` tokens."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        count = max(1, min(rows, most // max(1, lengths[order[start]])))
        yield order[start : start + count]
        start += count
