"""What waits to be computed, and the one thread that computes.

A request has items, such as sentences, of one task. The thread takes as many as the task computes
together. Whose turn it is depends on when a request could be done, had it been alone: a short one
overtakes a long one that is not nearly done, and equal ones are done in the order they came. (By
turns, under more load than there is time for, all would be nearly done, and none in time.) What is
being computed gives way, too: a task asks again and again whether its items are still wanted, and
meanwhile the same thread computes shorter requests. Requests come and go in the event loop; a lock
keeps the two apart.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from edgewise.errors import EdgewiseError
from edgewise.server.metrics import Metrics

# How long tasks take in relation to what they expect is learnt from so many batches.
REMEMBERED = 20
LONGEST_PAUSE = 120
# Of the time that an answer may take, how much a request may have to wait: the rest is for itself,
# and for what is not known of the speed.
WAITING_SHARE = 0.75
# Items computed together take about as long as each other, up to this factor.
SIMILAR = 4
# What is being computed, and takes more seconds than `LEAST`, gives way to requests of a quarter of
# its remaining time or less, after every `PAUSE`, and one within the other `DEPTH` times at most.
LEAST, GAIN, PAUSE, DEPTH = 0.25, 4, 0.02, 4


@runtime_checkable
class Task(Protocol):
    """What is done with items. Those of equal tasks are computed together."""

    @property
    def most(self) -> int:
        """Items computed together at most."""

    @property
    def characters(self) -> int:
        """Characters computed together at most, each item counted as long as the longest."""

    @property
    def kind(self) -> Hashable:
        """Tasks of one kind are slower or faster than expected by the same factor."""

    def seconds(self, item: str) -> float:
        """Return how long an item is expected to take, computed alone."""

    def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> Sequence[Any]:
        """A result of each. Of an item that is no longer wanted it may be anything."""


class BusyError(EdgewiseError):
    """Too much waits already."""

    def __init__(self, message: str, pause: int) -> None:
        super().__init__(f"{message}: try again in {pause} s")
        self.pause = pause


class Ticket:
    """A request's items, and their results as they come."""

    def __init__(self, task: Task, items: Sequence[str], seconds: Sequence[float]) -> None:
        self.task, self.items, self.seconds, self.wanted = task, items, seconds, True
        loop = asyncio.get_running_loop()
        self.results: list[asyncio.Future[Any]] = [loop.create_future() for _ in items]
        self.came = time.monotonic()
        self.taken = 0  # items that are being computed, or have been
        self.undone = sum(seconds, 0.0)  # what the items take that have not been computed
        self.longest = max(seconds, default=0.0)

    @property
    def end(self) -> float:
        """When it could be done, had it been alone."""
        return self.came + self.undone


Batch = list[tuple[Ticket, int]]


@dataclass
class _Computation:
    """A batch that is being computed."""

    began: float
    end: float  # when it is expected to be done
    others: float = 0.0  # seconds for which it gave way

    def remaining(self, now: float) -> float:
        """Seconds that it still takes; if it should be done, as many as it has taken so far."""
        return max(self.end - now, now - self.began - self.others)


class Work:
    """The queue. Somebody has to `run` it."""

    def __init__(
        self, metrics: Metrics, thread: ThreadPoolExecutor, *, waiting: int, seconds: float
    ) -> None:
        """thread: has one, which computes. waiting: requests, at most. seconds: one that would wait
        longer is not taken.
        """
        self.metrics, self.waiting, self.seconds = metrics, waiting, seconds
        self.draining = False  # no more requests are taken
        self._open: list[Ticket] = []
        self._lock = Lock()  # of the tickets
        self._factors: dict[Hashable, float] = {}  # measured to expected seconds
        self._some = asyncio.Event()
        self._thread = thread
        # These are the thread's own.
        self._past: dict[Hashable, deque[tuple[float, float]]] = {}  # expected and measured
        self._computations: list[_Computation] = []
        self._next_pause = 0.0

    @property
    def open(self) -> int:
        """Requests that are being answered."""
        return len(self._open)

    def refuse_if_busy(self, own: float = 0.0) -> None:
        """BusyError if a request that came now, and takes `own` seconds, would have to wait too
        long.
        """
        end, gives_way = time.monotonic() + own, max(LEAST, GAIN * own)
        with self._lock:
            delay = sum(
                ticket.undone
                for ticket in self._open
                if ticket.end <= end and ticket.longest < gives_way
            )
        pause = min(max(1, math.ceil(delay)), LONGEST_PAUSE)
        if self.draining:
            raise BusyError("the server is shutting down", pause)
        if self.open >= self.waiting:
            raise BusyError(f"the queue is full ({self.waiting} requests)", pause)
        late = delay + own > self.seconds and delay > PAUSE  # alone, it may try
        if late or delay > WAITING_SHARE * self.seconds:
            raise BusyError(
                f"the server is busy: waiting requests take about {delay:.0f} s and this one "
                f"{own:.0f} s (limits: {WAITING_SHARE * self.seconds:.3g} s of waiting, "
                f"{self.seconds:g} s in all)",
                pause,
            )

    @contextmanager
    def submitted(
        self, task: Task, items: Sequence[str], *, streamed: bool = False
    ) -> Iterator[Ticket]:
        """A ticket; what is not done when the block is left, for whatever reason, is dropped.

        streamed: the time that an answer may take is that of each item, not of all.
        """
        seconds = [self._expected(task, item) for item in items]
        self.refuse_if_busy(sum(seconds[:1] if streamed else seconds, 0.0))
        ticket = Ticket(task, items, seconds)
        with self._lock:
            self._open.append(ticket)
        self._count(len(items))
        self._some.set()
        try:
            yield ticket
        finally:
            ticket.wanted = False
            with self._lock:
                self._open.remove(ticket)
                left, ticket.taken = len(items) - ticket.taken, len(items)
            self._count(-left)
            for result in ticket.results:
                if result.cancel() or result.cancelled():
                    self.metrics.dropped.inc()
                else:
                    result.exception()  # asyncio complains of failures that nobody asks for

    async def run(self) -> None:
        """Compute whatever comes, until this is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._some.wait()
                self._some.clear()
                await loop.run_in_executor(self._thread, self._compute_all, loop)
        finally:
            self.draining = True  # whatever the reason, nothing is computed any more
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _expected(self, task: Task, item: str) -> float:
        """How long an item takes, as far as is known."""
        return task.seconds(item) * self._factors.get(_learnt(task, item), 1.0)

    def _count(self, items: int) -> None:
        self.metrics.waiting_requests.set(self.open)
        self.metrics.waiting_sentences.inc(items)

    # What follows runs in the thread.

    def _compute_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while not loop.is_closed() and (batch := self._next()):
            self._compute(batch, loop)

    def _next(self, remaining: float = math.inf) -> Batch:
        """Items of the task whose turn it is, of one request after the other.

        remaining: of what gives way to them.
        """
        with self._lock:
            waiting = [ticket for ticket in self._open if ticket.taken < len(ticket.items)]
            shorter = [ticket for ticket in waiting if GAIN * ticket.undone <= remaining]
            if not shorter:
                return []
            first = min(shorter, key=lambda ticket: ticket.end)
            waiting.sort(key=lambda ticket: (ticket is not first, ticket.end))
            task, usual = first.task, first.seconds[first.taken]
            batch: Batch = []
            longest = 0
            for ticket in waiting:
                if ticket.task != task:
                    continue
                left = slice(ticket.taken, ticket.taken + task.most - len(batch))
                for item, seconds in zip(ticket.items[left], ticket.seconds[left], strict=True):
                    longest = max(longest, len(item))
                    alike = usual <= SIMILAR * seconds and seconds <= SIMILAR * usual
                    if batch and not (alike and longest * (len(batch) + 1) <= task.characters):
                        break  # too long to go with these, or too short
                    batch.append((ticket, ticket.taken))
                    ticket.taken += 1
        return batch

    def _compute(self, batch: Batch, loop: asyncio.AbstractEventLoop) -> None:
        began = time.monotonic()
        seconds = sum(ticket.seconds[number] for ticket, number in batch)
        computation = _Computation(began, began + seconds)
        self._computations.append(computation)

        def wanted(ticket: Ticket) -> bool:
            self._give_way(computation, loop)
            return ticket.wanted

        results = _computed(batch, wanted)
        self._computations.pop()
        every = time.monotonic() - began
        if self._computations:
            self._computations[-1].others += every
        self._done(batch, every - computation.others)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver, batch, results)

    def _give_way(self, computation: _Computation, loop: asyncio.AbstractEventLoop) -> None:
        """Compute what is shorter, if there is anything."""
        now = time.monotonic()
        if now < self._next_pause or len(self._computations) == DEPTH:
            return
        remaining = computation.remaining(now)
        if remaining > LEAST and (batch := self._next(remaining)):
            self._compute(batch, loop)
        after = time.monotonic()
        # What should be done gives way for half of the time.
        self._next_pause = after + max(PAUSE, after - now if after > computation.end else 0)

    def _done(self, batch: Batch, seconds: float) -> None:
        with self._lock:
            for ticket, number in batch:
                ticket.undone -= ticket.seconds[number]
        self._count(-len(batch))
        self.metrics.batch_items.observe(len(batch))
        self.metrics.batch_seconds.observe(seconds)
        # What was given up early says nothing of how long the rest takes.
        known = sum(ticket.seconds[number] for ticket, number in batch)
        if seconds > known or all(ticket.wanted for ticket, _ in batch):
            task = batch[0][0].task
            items = [ticket.items[number] for ticket, number in batch]
            learnt = _learnt(task, max(items, key=len))
            past = self._past.setdefault(learnt, deque(maxlen=REMEMBERED))
            past.append((sum(map(task.seconds, items)), seconds))
            expected, measured = map(sum, zip(*past, strict=True))
            self._factors[learnt] = measured / max(expected, 1e-9)


def _learnt(task: Task, item: str) -> Hashable:
    """What the speed of an item is learnt by: of how many, about, are computed together, too."""
    together = max(1, min(task.most, task.characters // max(1, len(item))))
    return task.kind, together.bit_length()


def _computed(batch: Batch, wanted: Callable[[Ticket], bool]) -> list[Any]:
    """The results, or what prevented them. If some item fails, no other does for its sake."""
    try:
        items = [ticket.items[number] for ticket, number in batch]
        results = list(batch[0][0].task(items, lambda i: wanted(batch[i][0])))
        assert len(results) == len(items)
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for one in batch for result in _computed([one], wanted)]
    return results


def _deliver(batch: Batch, results: Sequence[Any]) -> None:
    for (ticket, number), result in zip(batch, results, strict=True):
        future = ticket.results[number]
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
