"""What the ranks say to each other: alone nothing, else the same on all of them."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from messages import assert_mentions, raises

from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.training import ranks as module
from edgewise.training.errors import ElsewhereError, InterruptedRunError
from edgewise.training.ranks import Ranks, messages

SIZE = 3
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def set_to(*values: str) -> None:
        for name, value in zip(NAMES, values, strict=False):
            monkeypatch.setenv(name, value)

    return set_to


def test_a_process_that_torchrun_did_not_start_is_one_of_one(
    environment: Callable[..., None],
) -> None:
    assert Ranks.of_environment() == Ranks(rank=0, size=1, local=0, restarts=0, launched=False)
    assert Ranks().is_first


def test_torchrun_says_which_of_how_many_a_process_is(environment: Callable[..., None]) -> None:
    environment("5", "8", "1", "2", "some run")
    ranks = Ranks.of_environment()
    assert ranks == Ranks(rank=5, size=8, local=1, restarts=2, launched=True)
    assert not ranks.is_first


@pytest.mark.parametrize(
    "values", [("2", "2"), ("-1", "2"), ("0", "0"), ("one", "2"), ("0", ""), ("0", "1", "0", "x")]
)
def test_an_environment_that_names_no_rank_is_refused(
    values: tuple[str, ...], environment: Callable[..., None]
) -> None:
    environment(*values)
    facts = [f"{name}={value}" for name, value in zip(NAMES, values, strict=False)]
    with raises(SettingError, *facts, "LOCAL_RANK", "torchrun"):
        Ranks.of_environment()


def test_messages_hold_all_gradients_in_order_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGE", 10)
    gradients = [torch.zeros(n) for n in (4, 6, 1, 12, 10, 3, 3)]
    sent = list(messages(gradients))
    assert [[len(gradient) for gradient in some] for some in sent] == [
        [4, 6],
        [1],
        [12],
        [10],
        [3, 3],
    ]
    together = [gradient for some in sent for gradient in some]
    assert all(one is other for one, other in zip(together, gradients, strict=True))


def test_a_process_alone_says_nothing() -> None:
    ranks, gradient = Ranks(), torch.tensor([1.0, 2.0])
    with ranks.joined(torch.device("cpu")):
        assert not dist.is_initialized()
        ranks.sum_gradients([gradient])
        ranks.spread({"gradient": gradient})
        assert gradient.tolist() == [1.0, 2.0]
        assert ranks.summed([1.5, 2.5]) == [1.5, 2.5]
        assert ranks.highest(7) == 7
        assert ranks.told({"a": [None]}) == {"a": [None]}
        with pytest.raises(DataError, match="mine"), ranks.together():
            raise DataError("mine")


def test_what_all_ranks_have_agreed_on_is_told_by_the_first() -> None:
    error = InterruptedRunError(15, 3)
    assert Ranks(0, SIZE).agreed(error) is error
    elsewhere = Ranks(1, SIZE).agreed(error)
    assert isinstance(elsewhere, ElsewhereError) and elsewhere.cause is error


def _failed(ranks: Ranks, errors: dict[int, Exception]) -> list[str]:
    try:
        with ranks.together():
            if ranks.rank in errors:
                raise errors[ranks.rank]
    except (EdgewiseError, OSError) as error:
        return [type(error).__name__, str(error)]
    return []


def _all_cases(ranks: Ranks, leave: Any) -> dict[str, Any]:
    results: dict[str, Any] = {}
    results["added"] = ranks.summed([float(ranks.rank), 0.1 * 10**ranks.rank, 0.0])
    results["highest"] = [ranks.highest(ranks.rank), ranks.highest(-ranks.rank)]
    results["told"] = [
        ranks.told(value if ranks.is_first else "not asked")
        for value in (None, "", {"step": 3, "größe": [1.5, None, "…" * 300]})
    ]
    tensors = {
        "matrix": torch.full((2, 3), float(ranks.rank + 1)),
        "step": torch.tensor(float(ranks.rank + 4)),
    }
    ranks.spread(tensors)
    results["spread"] = {name: tensor.tolist() for name, tensor in tensors.items()}

    module.MESSAGE = 10
    gradients = [torch.full((n, 2), float(n * 10**ranks.rank)) for n in (1, 4, 7, 2)]
    before = [gradient.data_ptr() for gradient in gradients]
    ranks.sum_gradients(gradients)
    results["in place"] = before == [gradient.data_ptr() for gradient in gradients]
    results["gradients"] = [gradient.tolist() for gradient in gradients]
    infinite = [torch.tensor([1.0, float("inf") if ranks.rank == 2 else 2.0])]
    ranks.sum_gradients(infinite)
    results["infinite"] = infinite[0].tolist()

    results["nobody"] = _failed(ranks, {})
    results["the last"] = _failed(ranks, {2: DataError("two")})
    results["two of them"] = _failed(ranks, {1: OSError(28, "full", "disk"), 2: DataError("two")})
    results["all"] = _failed(ranks, {rank: SettingError(str(rank)) for rank in range(SIZE)})

    leave.wait()  # all have all results
    if ranks.rank == 2:
        return results
    try:
        while True:
            ranks.summed([1.0])
    except EdgewiseError as error:
        results["lost"] = [type(error).__name__, str(error)]
    return results


def _rank(rank: int, port: int, leave: Any, queue: Any) -> None:
    values = {"RANK": rank, "WORLD_SIZE": SIZE, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in values.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    torch.set_num_threads(1)
    ranks = Ranks.of_environment()
    with ranks.joined(torch.device("cpu")):
        results = _all_cases(ranks, leave)
    queue.put((rank, results, dist.is_initialized()))


@pytest.fixture(scope="module")
def said() -> list[dict[str, Any]]:
    """What each of three processes came to, in all cases."""
    context = multiprocessing.get_context("forkserver")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    leave, queue = context.Barrier(SIZE), context.Queue()
    arguments = (store.port, leave, queue)
    processes = [context.Process(target=_rank, args=(r, *arguments)) for r in range(SIZE)]
    try:
        for process in processes:
            process.start()
        answers = {rank: rest for rank, *rest in (queue.get(timeout=60) for _ in processes)}
        assert not any(is_initialized for _, is_initialized in answers.values())
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join()
    return [answers[rank][0] for rank in range(SIZE)]


def test_all_ranks_get_the_same_sum_and_the_same_maximum(said: list[dict[str, Any]]) -> None:
    for results in said:
        assert results["added"] == pytest.approx([3.0, 11.1, 0.0])
        assert results["added"] == said[0]["added"]
        assert results["highest"] == [2, 0]


def test_all_ranks_are_told_what_the_first_says(said: list[dict[str, Any]]) -> None:
    expected = [None, "", {"step": 3, "größe": [1.5, None, "…" * 300]}]
    assert [results["told"] for results in said] == [expected] * SIZE


def test_spread_gives_all_ranks_the_values_of_the_first(said: list[dict[str, Any]]) -> None:
    expected = {"matrix": [[1.0] * 3] * 2, "step": 4.0}
    assert [results["spread"] for results in said] == [expected] * SIZE


def test_gradients_are_replaced_by_their_sums_in_several_messages(
    said: list[dict[str, Any]],
) -> None:
    for results in said:
        assert results["gradients"] == [[[111.0 * n] * 2] * n for n in (1, 4, 7, 2)]
        assert results["in place"]
        assert results["infinite"] == [3.0, float("inf")]


ELSEWHERE = ["ElsewhereError"]


def test_what_fails_on_one_rank_fails_on_all_and_the_lowest_tells_why(
    said: list[dict[str, Any]],
) -> None:
    def outcomes(case: str) -> list[list[str]]:
        found = [results[case] for results in said]
        for _, message in (each for each in found if each[:1] == ELSEWHERE):
            assert_mentions(message, "another rank")
        return [ELSEWHERE if each[:1] == ELSEWHERE else each for each in found]

    assert outcomes("nobody") == [[], [], []]
    assert outcomes("the last") == [ELSEWHERE, ELSEWHERE, ["DataError", "two"]]
    full = ["OSError", "[Errno 28] full: 'disk'"]
    assert outcomes("two of them") == [ELSEWHERE, full, ELSEWHERE]
    assert outcomes("all") == [["SettingError", "0"], ELSEWHERE, ELSEWHERE]


def test_a_rank_that_has_left_is_told_by_the_others(said: list[dict[str, Any]]) -> None:
    for results in said[:2]:
        kind, message = results["lost"]
        assert kind == "EdgewiseError"
        assert_mentions(message, "ranks", "checkpoint")
        assert "\n" not in message
