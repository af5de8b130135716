"""How a run can end before its time."""

import signal
from collections.abc import Sequence

from edgewise.errors import EdgewiseError


class InterruptedRunError(EdgewiseError):
    """A signal ended the run; everything up to its last update is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} after update {step}, which is saved; the "
            "same command goes on from there"
        )
        self.number = number


class NotFiniteError(EdgewiseError):
    """A loss or gradient that is no number; the model is as it was before the update."""

    def __init__(self, losses: Sequence[float], gradient_norm: float) -> None:
        super().__init__(f"the losses are {losses}, the gradient's length {gradient_norm}")
        self.losses, self.gradient_norm = losses, gradient_norm


class ElsewhereError(EdgewiseError):
    """The run has ended on all ranks; another one tells why. `cause` is known if it was agreed."""

    def __init__(self, cause: EdgewiseError | None = None) -> None:
        super().__init__("the run has ended on another rank, which tells why")
        self.cause = cause
