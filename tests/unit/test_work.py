"""The queue: what is computed together, whose turn it is, and what is dropped."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from messages import raises

from edgewise.errors import ArgumentError
from edgewise.server.metrics import Metrics
from edgewise.server.work import BusyError, Ticket, Work


@dataclass(eq=False)
class Upper:
    """Capital letters, at the pace of the test."""

    most: int = 4
    characters: int = 1000
    batches: list[list[str]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    given_up: list[str] = field(default_factory=list)

    def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
        self.batches.append(list(items))
        self.begun.set()
        assert self.may_go_on.wait(10)
        self.given_up += [item for i, item in enumerate(items) if not wanted(i)]
        if any("bad" in item for item in items):
            raise ArgumentError("bad")
        return [item.upper() for item in items]


def new_work(**changes: Any) -> Work:
    thread = ThreadPoolExecutor(1)
    return Work(Metrics(), thread, **{"waiting": 100, "seconds": 30.0, **changes})


def running(work: Work, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The test, while somebody computes."""

    async def both() -> None:
        task = asyncio.create_task(work.run())
        try:
            async with asyncio.timeout(20):
                await test()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(both())


async def begun(task: Upper) -> None:
    """Until the thread is at work."""
    while not task.begun.is_set():
        await asyncio.sleep(0.001)


async def results(ticket: Ticket) -> list[Any]:
    return [await result for result in ticket.results]


def test_what_waits_is_computed_together_and_what_came_first_comes_first() -> None:
    work, task = new_work(), Upper()

    async def test() -> None:
        with work.submitted(task, ["first"]) as first:
            await begun(task)
            with (
                work.submitted(task, ["a", "b", "c"]) as second,
                work.submitted(task, ["x", "y", "z"]) as third,
            ):
                task.may_go_on.set()
                assert await results(third) == ["X", "Y", "Z"]
                assert await results(second) == ["A", "B", "C"]
                assert await results(first) == ["FIRST"]

    running(work, test)
    assert task.batches == [["first"], ["a", "b", "c", "x"], ["y", "z"]]
    assert work.open == work.pending == 0


def test_a_short_request_overtakes_a_long_one_that_is_not_nearly_done() -> None:
    work, task = new_work(seconds=1e6), Upper()
    work._past.append((1, 1.0))  # slow: what came earlier by some milliseconds is not favoured

    async def test() -> None:
        with work.submitted(task, [*"abcdefgh"]) as long:
            await begun(task)
            with work.submitted(task, ["x"]) as short, work.submitted(task, [*"mnopq"]) as other:
                task.may_go_on.set()
                for ticket in (short, long, other):
                    await results(ticket)

    running(work, test)
    assert task.batches == [[*"abcd"], [*"xefg"], [*"hmno"], [*"pq"]]


def test_other_tasks_are_computed_apart() -> None:
    work, task, other = new_work(), Upper(), Upper()
    task.may_go_on.set()
    other.may_go_on.set()

    async def test() -> None:
        with (
            work.submitted(task, ["a", "b"]) as first,
            work.submitted(other, ["x"]) as second,
            work.submitted(task, ["c"]) as third,
        ):
            for ticket in (first, second, third):
                await results(ticket)

    running(work, test)
    assert task.batches == [["a", "b", "c"]] and other.batches == [["x"]]


def test_a_long_item_waits_for_a_batch_of_its_own() -> None:
    work, task = new_work(), Upper(characters=30)
    task.may_go_on.set()

    async def test() -> None:
        with work.submitted(task, ["aa", "b" * 20, "cc", "dd"]) as ticket:
            assert await results(ticket) == ["AA", "B" * 20, "CC", "DD"]

    running(work, test)
    assert task.batches == [["aa"], ["b" * 20], ["cc", "dd"]]


def test_an_item_that_fails_fails_alone() -> None:
    work, task = new_work(), Upper()
    task.may_go_on.set()

    async def test() -> None:
        with (
            work.submitted(task, ["a", "bad"]) as first,
            work.submitted(task, ["c"]) as second,
        ):
            assert await results(second) == ["C"]
            assert await first.results[0] == "A"
            with pytest.raises(ArgumentError, match="bad"):
                await first.results[1]

    running(work, test)


def test_what_nobody_waits_for_is_not_computed_and_what_is_begun_is_told() -> None:
    work, task = new_work(), Upper(most=1)

    async def test() -> None:
        with suppress(RuntimeError), work.submitted(task, ["a", "b", "c"]):
            await begun(task)
            raise RuntimeError("the client has gone")
        with work.submitted(task, ["z"]) as ticket:
            task.may_go_on.set()
            assert await results(ticket) == ["Z"]

    running(work, test)
    assert task.batches == [["a"], ["z"]]
    assert task.given_up == ["a"]
    assert work.open == work.pending == 0
    assert work.metrics.registry.get_sample_value("edgewise_dropped_total") == 3


def test_more_requests_than_may_wait_are_refused_before_anything_is_done() -> None:
    work, task = new_work(waiting=2), Upper()
    task.may_go_on.set()

    async def test() -> None:
        with work.submitted(task, ["a"]) as first, work.submitted(task, []):
            with raises(BusyError, "requests", 2, 1):
                work.refuse_if_busy()
            with pytest.raises(BusyError), work.submitted(task, ["b"]):
                pass
            assert await results(first) == ["A"]
        work.refuse_if_busy()

    running(work, test)
    assert task.batches == [["a"]]


def test_a_request_that_would_wait_too_long_is_refused_and_told_for_how_long() -> None:
    work, task = new_work(seconds=5.0), Upper(most=1)
    work._past.append((10, 1.0))  # ten a second

    async def test() -> None:
        with work.submitted(task, []):
            work.refuse_if_busy()
            # And the 50 that each costs.
            with work.submitted(task, ["y" * 21]), raises(BusyError, 7, 5, 8):
                work.refuse_if_busy()
        task.may_go_on.set()

    running(work, test)


def test_a_server_that_shuts_down_takes_no_more() -> None:
    work = new_work()
    work.draining = True
    with raises(BusyError, "shutting down"):
        work.refuse_if_busy()


def test_only_what_is_computed_together_to_its_end_teaches_the_speed() -> None:
    work, together, alone = new_work(), Upper(), Upper(most=1)
    alone.may_go_on.set()

    async def test() -> None:
        with work.submitted(alone, ["a"]) as ticket:
            await results(ticket)
        with work.submitted(together, ["b"]):
            await begun(together)
        together.may_go_on.set()  # nobody waits for it
        with work.submitted(together, ["ccc", "dd"]) as ticket:
            await results(ticket)

    running(work, test)
    assert [cost for cost, _ in work._past] == [105]


def test_a_task_that_loses_items_fails_and_the_next_does_not() -> None:
    work, task = new_work(), Upper()
    task.may_go_on.set()

    class Losing(Upper):
        def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
            return []

    async def test() -> None:
        with work.submitted(Losing(), ["a"]) as ticket, pytest.raises(AssertionError):
            await results(ticket)
        with work.submitted(task, ["b"]) as ticket:
            assert await results(ticket) == ["B"]

    running(work, test)
    with pytest.raises(BusyError):  # nobody computes any more
        work.refuse_if_busy()
