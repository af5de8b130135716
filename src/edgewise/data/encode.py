"""Blocks of line pairs to tokens, on all cores, in order; what cannot be used is told by reason."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.data.corpus import token_type
from edgewise.data.text import LONGEST_LINE
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import EdgewiseError

Line = bytes | None
BLOCK, BLOCK_BYTES = 4096, 1 << 23
NO_COLUMN, INVALID, NUL = "no such column", "invalid UTF-8", "NUL character (UTF-16?)"
EMPTY, TOO_LONG = "empty", "too long"
REASONS = (NO_COLUMN, INVALID, NUL, EMPTY, TOO_LONG)


@dataclass(frozen=True)
class Encoded:
    """Source and target by turns: their tokens in one array; which pairs were dropped, and why."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    dropped: list[tuple[int, str, str]]  # index within the block, side, reason
    pairs: int


def readable(line: Line) -> str:
    """The reason why a line cannot be used, or "" if it can."""
    if line is None:
        return NO_COLUMN
    if len(line) >= LONGEST_LINE:
        return TOO_LONG
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return INVALID
    if "\0" in text:
        return NUL
    return EMPTY if not text or text.isspace() else ""


def encode_block(
    vocabulary: Vocabulary, block: list[tuple[Line, Line]], max_tokens: int
) -> Encoded:
    """The tokens of the pairs that can be used."""
    texts: list[str] = []
    at: list[int] = []
    dropped = []
    for index, pair in enumerate(block):
        reasons = [readable(line) for line in pair]
        if any(reasons):
            side = "source" if reasons[0] else "target"
            dropped.append((index, side, reasons[0] or reasons[1]))
        else:
            texts += [line.decode() for line in pair if line is not None]
            at.append(index)
    encoded = vocabulary.encode(texts)
    kept: list[list[int]] = []
    for index, source, target in zip(at, encoded[0::2], encoded[1::2], strict=True):
        if max(len(source), len(target)) > max_tokens:
            side = "source" if len(source) > max_tokens else "target"
            dropped.append((index, side, TOO_LONG))
        else:
            kept += [source, target]
    tokens = np.fromiter(chain.from_iterable(kept), dtype=token_type(vocabulary))
    lengths = np.array([len(sequence) for sequence in kept], dtype=np.int32)
    return Encoded(tokens, lengths, sorted(dropped), len(block))


def in_blocks(pairs: Iterable[tuple[Line, Line]]) -> Iterator[list[tuple[Line, Line]]]:
    """As many pairs as make a block, fewer where lines are long."""
    block, size = [], 0
    for pair in pairs:
        block.append(pair)
        size += sum(len(line) for line in pair if line is not None)
        if len(block) == BLOCK or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def cores() -> int:
    """How many processor cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def encode_all(
    pairs: Iterable[tuple[Line, Line]], vocabulary: Vocabulary, max_tokens: int, workers: int
) -> Iterator[Encoded]:
    """Every block encoded, in order, whatever the number of workers."""
    blocks = in_blocks(pairs)
    first = list(islice(blocks, 2))
    if len(first) < 2 or workers == 1:  # no process is worth its start
        for block in chain(first, blocks):
            yield encode_block(vocabulary, block, max_tokens)
        return
    waiting: deque[Future[Encoded]] = deque()
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(vocabulary.model, max_tokens),
    ) as pool:
        try:
            for block in chain(first, blocks):
                with _sigint_blocked():  # a worker that is started inherits that
                    waiting.append(pool.submit(_work, block))
                if len(waiting) > 2 * workers:  # so that memory does not grow with the corpus
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise EdgewiseError(
                "a worker process was ended from outside, perhaps for lack of memory: try fewer "
                f"--workers than {workers}"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT, which the parent handles, and which would end a worker with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_state: dict[str, Any] = {}


def _start(model: bytes, max_tokens: int) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _state.update(vocabulary=Vocabulary(model), max_tokens=max_tokens)


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers, which would wait for it forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(block: list[tuple[Line, Line]]) -> Encoded:
    return encode_block(_state["vocabulary"], block, _state["max_tokens"])
