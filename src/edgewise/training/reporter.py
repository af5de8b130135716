"""Whom a run tells how it goes. This one keeps silent; the command line has one that speaks."""

from edgewise.evaluation import Score
from edgewise.training.settings import RunSettings
from edgewise.training.trainer import Update


class Reporter:
    """Each method is called when what it is named after happens."""

    def started(
        self, settings: RunSettings, step: int, parameters: int, fill: float, ranks: int
    ) -> None: ...

    def updated(self, update: Update, epoch: int, seconds: float) -> None: ...

    def validated(self, step: int, loss: float, bleu: Score | None, *, best: bool) -> None: ...

    def warned(self, message: str) -> None: ...
