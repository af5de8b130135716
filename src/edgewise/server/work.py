"""What waits to be computed, and the one thread that computes.

A request has items, such as sentences, of one task. The thread takes as many as the task computes
together. Whose turn it is depends on when a request could be done, had it been alone: a short one
overtakes a long one that is not nearly done, and equal ones are done in the order they came. (By
turns, under more load than there is time for, all would be nearly done, and none in time.)
Everything here runs in the event loop, but for the tasks.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from edgewise.errors import EdgewiseError
from edgewise.server.metrics import Metrics

# The speed is that of so many batches.
REMEMBERED = 20
# An item costs as much as its characters and so many more: a search has steps beyond the source.
EACH = 50
LONGEST_PAUSE = 120
# Of the time that an answer may take, how much a request may have to wait: the rest is for itself,
# and for what is not known of the speed.
WAITING_SHARE = 0.75


@runtime_checkable
class Task(Protocol):
    """What is done with items. Those of equal tasks are computed together."""

    @property
    def most(self) -> int:
        """Items computed together at most."""

    @property
    def characters(self) -> int:
        """Characters computed together at most, each item counted as long as the longest."""

    def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> Sequence[Any]:
        """A result of each. Of an item that is no longer wanted it may be anything."""


class BusyError(EdgewiseError):
    """Too much waits already."""

    def __init__(self, message: str, pause: int) -> None:
        super().__init__(f"{message}: try again in {pause} s")
        self.pause = pause


class Ticket:
    """A request's items, and their results as they come."""

    def __init__(self, task: Task, items: Sequence[str]) -> None:
        self.task, self.items, self.wanted = task, items, True
        loop = asyncio.get_running_loop()
        self.results: list[asyncio.Future[Any]] = [loop.create_future() for _ in items]
        self.came = time.monotonic()
        self.taken = 0  # items that are being computed, or have been

    @property
    def left(self) -> Sequence[str]:
        return self.items[self.taken :]


Batch = list[tuple[Ticket, int]]


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
        self.open = 0  # requests
        self.pending = 0  # what their items cost
        self._past: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)  # costs and seconds
        self._tickets: list[Ticket] = []  # those with items that wait
        self._some = asyncio.Event()
        self._thread = thread

    def refuse_if_busy(self) -> None:
        """BusyError if a request that came now would have to wait too long."""
        delay = self.pending * self._seconds
        pause = min(max(1, math.ceil(delay)), LONGEST_PAUSE)
        if self.draining:
            raise BusyError("the server is shutting down", pause)
        if self.open >= self.waiting:
            limit = self.waiting
            raise BusyError(f"requests are waiting already, {limit} of at most {limit}", pause)
        if delay > WAITING_SHARE * self.seconds:
            raise BusyError(
                f"what is waiting takes about {delay:.0f} s, and an answer may take "
                f"{self.seconds:g} s",
                pause,
            )

    @property
    def _seconds(self) -> float:
        """What each unit of cost takes, as far as is known."""
        cost, seconds = (sum(each[part] for each in self._past) for part in (0, 1))
        return seconds / cost if cost else 0.0

    @contextmanager
    def submitted(self, task: Task, items: Sequence[str]) -> Iterator[Ticket]:
        """A ticket; what is not done when the block is left, for whatever reason, is dropped."""
        self.refuse_if_busy()
        ticket = Ticket(task, items)
        self.open += 1
        self._count(items)
        if items:
            self._tickets.append(ticket)
            self._some.set()
        try:
            yield ticket
        finally:
            self.open -= 1
            ticket.wanted = False
            if ticket.left:
                self._tickets.remove(ticket)
            self._count(ticket.left, -1)
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
                while not self._tickets:
                    self._some.clear()
                    await self._some.wait()
                batch = self._next()
                began = time.perf_counter()
                results = await loop.run_in_executor(self._thread, _computed, batch)
                self._done(batch, results, time.perf_counter() - began)
        finally:
            self.draining = True  # whatever the reason, nothing is computed any more
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> Batch:
        """Items of the task whose turn it is, of one request after the other."""
        pace = self._seconds
        self._tickets.sort(key=lambda ticket: ticket.came + pace * _cost(ticket.left))
        task = self._tickets[0].task
        batch: Batch = []
        longest = 0
        for ticket in self._tickets:
            if ticket.task != task:
                continue
            for item in ticket.left[: task.most - len(batch)]:
                longest = max(longest, len(item))
                if batch and longest * (len(batch) + 1) > task.characters:
                    break  # too long to go with these
                batch.append((ticket, ticket.taken))
                ticket.taken += 1
        self._tickets = [ticket for ticket in self._tickets if ticket.left]
        return batch

    def _done(self, batch: Batch, results: Sequence[Any], seconds: float) -> None:
        for (ticket, number), result in zip(batch, results, strict=True):
            future = ticket.results[number]
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        items = [ticket.items[number] for ticket, number in batch]
        self._count(items, -1)
        self.metrics.batch_items.observe(len(batch))
        self.metrics.batch_seconds.observe(seconds)
        # What is always computed alone, or was given up, says nothing of how long the rest takes.
        if batch[0][0].task.most > 1 and all(ticket.wanted for ticket, _ in batch):
            self._past.append((_cost(items), seconds))

    def _count(self, items: Sequence[str], sign: int = 1) -> None:
        self.pending += sign * _cost(items)
        self.metrics.waiting_requests.set(self.open)
        self.metrics.waiting_sentences.inc(sign * len(items))


def _cost(items: Sequence[str]) -> int:
    return sum(map(len, items)) + EACH * len(items)


def _computed(batch: Batch) -> list[Any]:
    """The results, or what prevented them. If some item fails, no other does for its sake."""
    try:
        return _together(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for one in batch for result in _computed([one])]


def _together(batch: Batch) -> list[Any]:
    items = [ticket.items[number] for ticket, number in batch]
    results = list(batch[0][0].task(items, lambda i: batch[i][0].wanted))
    assert len(results) == len(items)
    return results
