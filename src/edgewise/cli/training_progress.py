"""How a run goes, on the terminal: a bar there, a line now and then elsewhere."""

import math
import time
from collections import deque
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from edgewise.cli.console import progress_bars, say
from edgewise.evaluation import Score
from edgewise.training.loop import Progress as RunProgress
from edgewise.training.reporter import Reporter
from edgewise.training.settings import RunSettings
from edgewise.training.trainer import Update

LINE_EVERY = 15.0  # seconds, where there is no terminal


class TrainingProgress(Reporter):
    """Tokens a second, loss and time left."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._recent: deque[tuple[int, float]] = deque(maxlen=50)
        self._told = 0.0
        self._bar = progress_bars(
            TextColumn("update"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )

    def __enter__(self) -> "TrainingProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def started(
        self, settings: RunSettings, step: int, parameters: int, fill: float, ranks: int
    ) -> None:
        going_on = f"going on after update {step:,}" if step else "from the start"
        going_on += f" on {ranks} ranks" if ranks > 1 else ""
        say(
            f"{settings.out}: {parameters:,} parameters, {going_on}; "
            f"batches are {fill:.1%} tokens, the rest is padding"
        )
        self._task = self._bar.add_task("", total=self.steps, completed=step, figures="")

    def updated(self, update: Update, epoch: int, seconds: float) -> None:
        self._recent.append((update.source_tokens + update.target_tokens, seconds))
        tokens, spent = (sum(column) for column in zip(*self._recent, strict=True))
        figures = f"epoch {epoch + 1}  loss {update.loss:.3f}  {tokens / spent:,.0f} tokens/s"
        if not self._bar.disable:
            self._bar.update(self._task, completed=update.step, figures=figures)
        elif time.monotonic() - self._told > LINE_EVERY:
            self._told = time.monotonic()
            left = (self.steps - update.step) * spent / len(self._recent)
            say(f"update {update.step:,} of {self.steps:,}  {figures}  {duration(left)} left")

    def validated(self, step: int, loss: float, bleu: Score | None, *, best: bool) -> None:
        mark = ", the lowest so far" if best else ""
        greedy = "" if bleu is None else f"; BLEU of greedy translations {bleu}"
        say(
            f"update {step:,}: validation loss {loss:.4f} a token, "
            f"perplexity {math.exp(min(loss, 700)):.4g}{mark}{greedy}"
        )

    def warned(self, message: str) -> None:
        say(f"warning: {message}")

    def ended(self, settings: RunSettings, progress: RunProgress) -> None:
        """The last words of a run that came to its end."""
        if progress.step >= settings.training.steps:
            say(f"done after {progress.step:,} updates (--training.steps sets how many)")
        else:
            say(f"no lower validation loss after {progress.step:,} updates (--training.patience)")
        if progress.best_loss is None:
            say("no validation, hence no best model (training.validate_every; --valid-source)")
        else:
            say(
                f"best model: {settings.out / 'best'}, validation loss {progress.best_loss:.4f} "
                f"after {progress.best_step:,}"
            )
        say(f"last model: {settings.out / 'last'}")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
