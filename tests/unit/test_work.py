"""The queue: what is computed together, whose turn it is, and what is dropped."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from messages import raises

from edgewise.errors import ArgumentError
from edgewise.server.metrics import Metrics
from edgewise.server.work import DEPTH, BusyError, Ticket, Work


@dataclass(eq=False)
class Upper:
    """Capital letters, at the pace of the test."""

    most: int = 4
    characters: int = 1000
    batches: list[list[str]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    given_up: list[str] = field(default_factory=list)
    each: float = 0.0  # seconds that a character is expected to take

    @property
    def kind(self) -> str:
        return "upper"

    def seconds(self, item: str) -> float:
        return self.each * len(item)

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
    assert work.open == 0


def test_a_short_request_overtakes_a_long_one_that_is_not_nearly_done() -> None:
    # Slow: what came earlier by some milliseconds is not favoured.
    work, task = new_work(seconds=1e6), Upper(each=1.0)

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
    assert work.open == 0
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
    work, task = new_work(seconds=5.0), Upper(most=1, each=0.1)

    async def test() -> None:
        with work.submitted(task, ["x" * 35]):  # 3.5 s, of which an answer may take 5
            work.refuse_if_busy(1.0)  # which would overtake it
            with raises(BusyError, "4 s", "5 s", 4), work.submitted(task, ["y" * 36]):
                pass
            with work.submitted(task, ["y" * 14]), raises(BusyError, "5 s", 5):
                work.refuse_if_busy(4.0)
        task.may_go_on.set()

    running(work, test)


def test_what_takes_longer_than_was_known_is_learnt_although_it_was_given_up() -> None:
    work, long = new_work(seconds=1e6), Long(each=0.001)

    async def test() -> None:
        with work.submitted(long, ["x"]):
            await begun(long)
            await asyncio.sleep(0.05)
        while not work._past:
            await asyncio.sleep(0.001)
        assert work._expected(long, "x") > 0.04

    running(work, test)


def test_a_request_is_not_refused_for_longer_ones_which_it_overtakes() -> None:
    work, task = new_work(seconds=5.0), Upper(most=1, each=0.1)

    async def test() -> None:
        # Although they should have been done before: they give way.
        overdue = new_work(seconds=0.1)
        with overdue.submitted(task, ["x" * 4]):
            await asyncio.sleep(0.5)
            overdue.refuse_if_busy()
            with pytest.raises(BusyError):
                overdue.refuse_if_busy(0.3)
        with work.submitted(task, ["x" * 45]):
            with pytest.raises(BusyError), work.submitted(task, ["y" * 46]):
                pass
            with work.submitted(task, ["z"]):
                pass
        # Alone, however long it seems to take; of a stream only the first item counts.
        with work.submitted(task, ["x" * 70]):
            pass
        with work.submitted(task, ["x"]), work.submitted(task, ["yy", "y" * 70], streamed=True):
            pass
        task.may_go_on.set()

    running(work, test)


def test_a_server_that_shuts_down_takes_no_more() -> None:
    work = new_work()
    work.draining = True
    with raises(BusyError, "shutting down"):
        work.refuse_if_busy()


def test_the_speed_is_learnt_from_what_was_computed_to_its_end() -> None:
    """Of each size apart: what is computed alone is slower than what is computed together."""
    work, task, alone = new_work(seconds=1e6), Upper(each=10.0), Upper(most=1, each=10.0)
    other = Upper(each=100.0, most=16)
    for each in (task, alone):
        each.may_go_on.set()

    async def test() -> None:
        assert work._expected(task, "ccc") == 30
        with work.submitted(other, ["b"]):
            await begun(other)
        other.may_go_on.set()  # nobody waits for it, and it did not take long
        with work.submitted(task, ["ccc", "dd"]) as ticket:
            await results(ticket)
        assert work._expected(task, "ccc") < 0.1 < work._expected(alone, "ccc") == 30
        assert work._expected(task, "c" * 900) == 9000
        with work.submitted(alone, ["a"]) as ticket:
            await results(ticket)
        assert work._expected(alone, "ccc") < 0.1

    running(work, test)
    assert len(work._past) == 2


class Long(Upper):
    """Asks whether it is wanted until the test lets it end; expected to take a minute."""

    def __init__(self, name: str = "long", **changes: Any) -> None:
        super().__init__(**{"each": 60.0, "most": 1, **changes})
        self.name = name

    @property
    def kind(self) -> str:
        return self.name

    def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
        self.batches.append(list(items))
        self.begun.set()
        end = time.monotonic() + 10
        while wanted(0) and not self.may_go_on.is_set() and time.monotonic() < end:
            time.sleep(0.001)
        if not wanted(0):
            self.given_up += items
        return [item.upper() for item in items]


def test_a_long_computation_gives_way_to_shorter_ones_and_those_to_shorter_still() -> None:
    work = new_work(seconds=1e6)
    tasks = [Long(str(seconds), each=float(seconds)) for seconds in (60, 12, 2)]
    short = Upper(most=1)
    short.may_go_on.set()

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            tickets = []
            for task in tasks:
                tickets.append(stack.enter_context(work.submitted(task, ["x"])))
                await begun(task)
            with work.submitted(short, ["a"]) as ticket:
                assert await results(ticket) == ["A"]  # while the others are being computed
            for task, ticket in zip(tasks[::-1], tickets[::-1], strict=True):
                assert not any(result.done() for result in ticket.results)
                task.may_go_on.set()
                assert await results(ticket) == ["X"]

    running(work, test)


def test_a_computation_gives_way_to_nothing_that_is_not_much_shorter() -> None:
    work, long, other = new_work(seconds=1e6), Long(), Long("other", each=20.0)

    async def test() -> None:
        with work.submitted(long, ["x"]) as first:
            await begun(long)
            with work.submitted(other, ["y"]) as second:
                await asyncio.sleep(0.1)
                assert not other.begun.is_set()
                long.may_go_on.set()
                assert await results(first) == ["X"]
                other.may_go_on.set()
                assert await results(second) == ["Y"]

    running(work, test)


def test_what_takes_longer_than_expected_gives_way_too() -> None:
    work, long, short = new_work(seconds=1e6), Long(each=0.0), Upper(most=1)
    short.may_go_on.set()

    async def test() -> None:
        with work.submitted(long, ["x"]) as first:
            await begun(long)
            with work.submitted(short, ["a"]) as ticket:
                assert await results(ticket) == ["A"]
            assert not first.results[0].done()

    running(work, test)
    work._thread.shutdown(wait=True)
    assert long.given_up == ["x"]  # nobody waits for it any more


def test_within_each_other_only_a_few_are_computed() -> None:
    """However wrong their estimates are: each one takes memory."""
    work, depth, deepest = new_work(seconds=1e6), 0, 0

    class Deep(Long):
        def __call__(self, items: Sequence[str], wanted: Callable[[int], bool]) -> list[str]:
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            result = super().__call__(items, wanted)
            depth -= 1
            return result

    tasks = [Deep(str(number), each=0.0) for number in range(6)]

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            for task in tasks:
                stack.enter_context(work.submitted(task, ["x"]))
            while deepest < DEPTH:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            for task in tasks:
                task.may_go_on.set()

    running(work, test)
    assert deepest == DEPTH


def test_the_thread_ends_although_the_loop_is_closed_while_it_computes() -> None:
    work, long = new_work(), Long(each=0.001)

    async def test() -> None:
        with work.submitted(long, ["x"]):
            await begun(long)

    running(work, test)
    work._thread.shutdown(wait=True)
    assert long.given_up == ["x"]


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
