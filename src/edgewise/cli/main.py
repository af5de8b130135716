"""The commands, and what each kind of failure exits with."""

import os
import sys
from errno import EDQUOT, ENOSPC

from cyclopts import App, CycloptsError
from pydantic import ValidationError
from rich.markup import escape

from edgewise import __version__
from edgewise.cli.average import average
from edgewise.cli.console import require_working_directory, say, set_up_output
from edgewise.cli.data import data
from edgewise.cli.demo import demo
from edgewise.cli.evaluate import evaluate
from edgewise.cli.explain import explain
from edgewise.cli.export import export
from edgewise.cli.importing import importing
from edgewise.cli.names import explain_settings
from edgewise.cli.prepare import prepare
from edgewise.cli.process import (
    FAILURE,
    INTERRUPTED,
    TERMINATED,
    Terminated,
    execute,
    interruption,
    lack_of_memory,
    leave,
)
from edgewise.cli.reproduce import reproduce
from edgewise.cli.score import score
from edgewise.cli.serve import serve
from edgewise.cli.train import settings_sources, train
from edgewise.cli.translate import translate
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.reproduction.grid import FailedCellError
from edgewise.training.errors import ElsewhereError, InterruptedRunError

USAGE, BAD_DATA, INPUT_OUTPUT = 2, 65, 74

app = App(
    name="edgewise",
    help="Relation-aware attention, and translation with it: from two text files to a model.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # we say so ourselves
    help_format="markdown",
)
app.command(prepare)
app.command(App(name="train", config=settings_sources, help_format="markdown")).default(train)
app.command(average)
app.command(translate)
app.command(score)
app.command(explain)
app.command(evaluate)
app.command(serve)
app.command(export)
app.command(importing)
app.command(reproduce)
app.command(data)
app.command(demo)
app.register_install_completion_command()


def main() -> None:
    """Run a command and exit."""
    leave(execute(lambda: run(sys.argv[1:])))


def run(arguments: list[str]) -> int:
    """Run a command; what it exits with."""
    try:
        set_up_output()
        require_working_directory()
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()  # what cannot be written is told now, not when Python ends
    except (CycloptsError, ValidationError) as error:
        if os.environ.get("LOCAL_RANK", "0") != "0":  # all ranks of a machine were told the same
            return USAGE
        return _failed(explain_settings(error), USAGE)
    except ElsewhereError as error:
        return _code(error.cause)
    except EdgewiseError as error:
        return _failed(str(error), _code(error))
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except Terminated:
        return _failed("terminated", TERMINATED)
    except BrokenPipeError:  # as with `| head -1`
        return 0
    except (ImportError, MemoryError, RuntimeError) as error:
        if message := lack_of_memory(error):
            return _failed(message, FAILURE)
        raise
    except OSError as error:
        if message := lack_of_memory(error):
            return _failed(message, FAILURE)
        where = f"{error.filename}: " if error.filename else ""
        full = error.errno in (ENOSPC, EDQUOT)
        remedy = ": make room, and give the same command again" if full else ""
        return _failed(f"{where}{error.strerror or error}{remedy}", INPUT_OUTPUT)
    return 0


def _code(error: Exception | None) -> int:
    """What a refusal of ours exits with."""
    if isinstance(error, InterruptedRunError):
        return 128 + error.number
    if isinstance(error, FailedCellError):
        return error.code
    if isinstance(error, SettingError):
        return USAGE
    return BAD_DATA if isinstance(error, DataError) else FAILURE


def _failed(message: str, code: int) -> int:
    message, code = interruption() or (message, code)
    rank = os.environ.get("RANK", "0")  # torchrun's
    where = "" if rank == "0" else f"rank {rank}: "
    say(f"[bold red]edgewise:[/] {escape(where + message)}", markup=True)
    return code
