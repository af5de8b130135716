"""Signals that stop a training run: the first one is recorded, a second one is not caught."""

import signal
from collections.abc import Iterator

import pytest

from edgewise.training.signals import stop_signals

STOPPING = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def uncaught() -> Iterator[list[int]]:
    """Install handlers, and return the list of signals that they receive."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda received, frame: numbers.append(received))
        for number in STOPPING
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", STOPPING)
@pytest.mark.parametrize("second", STOPPING)
def test_a_second_signal_reaches_the_handler_from_before(
    first: signal.Signals, second: signal.Signals, uncaught: list[int]
) -> None:
    with stop_signals() as stop:
        assert stop.number == 0
        signal.raise_signal(first)
        assert (stop.number, uncaught) == (first, [])
        signal.raise_signal(second)
        assert (stop.number, uncaught) == (first, [second])


def test_under_torchrun_a_second_signal_is_caught_as_well(uncaught: list[int]) -> None:
    with stop_signals(patient=True) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert (stop.number, uncaught) == (signal.SIGTERM, [])


@pytest.mark.parametrize("patient", [False, True])
def test_after_a_complete_run_signals_reach_the_handler_from_before(
    patient: bool, uncaught: list[int]
) -> None:
    with stop_signals(patient=patient):
        pass
    signal.raise_signal(signal.SIGTERM)
    assert uncaught == [signal.SIGTERM]


@pytest.mark.parametrize("patient", [False, True])
def test_after_a_failed_run_signals_are_caught_under_torchrun_alone(
    patient: bool, uncaught: list[int]
) -> None:
    with pytest.raises(ZeroDivisionError), stop_signals(patient=patient):
        raise ZeroDivisionError
    signal.raise_signal(signal.SIGTERM)
    assert uncaught == ([] if patient else [signal.SIGTERM])
