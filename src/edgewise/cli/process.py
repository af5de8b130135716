"""Signals, standard streams, memory limits and exit of a command's process.

It imports little, so that it can be used before the libraries that a command needs are loaded.
"""

import atexit
import mmap
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from types import FrameType
from typing import Any, NoReturn

FAILURE, INTERRUPTED, TERMINATED = 1, 130, 143
# With less address space, native libraries may abort the process: NumPy; PyTorch, sentencepiece.
LEAST, LEAST_TO_WORK = 160 << 20, 640 << 20
_LACKS = (
    *("failed to map segment", "allocate memory", "bad_alloc", "out of memory"),
    *("can't start new thread", "Resource temporarily unavailable", "not create a primitive"),
)


class Terminated(BaseException):
    """SIGTERM was received: temporary files are removed on the way out."""


class _Signals:
    """SIGINT raises KeyboardInterrupt and SIGTERM Terminated, but not everywhere.

    While one of them is handled, others are ignored, so that temporary files are removed. During
    an import the first one waits for its end: much of what is imported catches any exception.
    """

    def __init__(self) -> None:
        self.ended = False
        self.raised = self._pending = 0  # numbers of signals

    def catch(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # as after nohup
                signal.signal(number, self._received)
        if hasattr(signal, "SIGALRM"):  # not on Windows
            signal.signal(signal.SIGALRM, self._received)
            sys.unraisablehook = self._lost

    def _received(self, number: int, frame: FrameType | None) -> None:
        is_signal = number in (signal.SIGINT, signal.SIGTERM)  # else the timer below
        is_second = bool(self._pending) and is_signal
        self._pending = number if is_signal else self._pending
        if self.ended or not self._pending or _is_handled(sys.exception()):
            return
        if _is_importing(frame) and not is_second and hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return
        self.raise_pending()

    def raise_pending(self) -> None:
        """Raise for a signal that was received and has had to wait."""
        if self._pending:
            self.raised, self._pending = self._pending, 0
            raise KeyboardInterrupt if self.raised == signal.SIGINT else Terminated

    def _lost(self, details: Any) -> None:
        """Raise again, a little later, what was raised where Python ignores exceptions."""
        if isinstance(details.exc_value, KeyboardInterrupt | Terminated):
            self._pending = self.raised
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        else:
            sys.__unraisablehook__(details)


_signals = _Signals()


def raise_pending() -> None:
    """Raise for a signal that was received during an import."""
    _signals.raise_pending()


def interruption() -> tuple[str, int] | None:
    """Return message and exit code if a signal has ended the command.

    Native code may have turned what the signal raised into any other error.
    """
    if not _signals.raised:
        return None
    is_sigint = _signals.raised == signal.SIGINT
    return ("interrupted", INTERRUPTED) if is_sigint else ("terminated", TERMINATED)


def _is_handled(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt | Terminated):
        error = error.__context__
    return error is not None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def execute(work: Callable[[], int]) -> int:
    """Return the exit code of a command, whatever happens in it."""
    try:
        _signals.catch()
        _open_descriptors()
        code = work()
        _signals.ended = True
    except (Exception, KeyboardInterrupt, Terminated) as error:
        _signals.ended = True
        message, code = interruption() or (lack_of_memory(error) or _defect(error), FAILURE)
        _print(message)
        if sys.flags.dev_mode:
            raise
    return code


def leave(code: int) -> NoReturn:
    """Exit. Ranks and interrupted commands skip Python's own shutdown.

    In a normal shutdown, threads of PyTorch that are connected to other ranks may wait for them
    (nccl) or abort the process (gloo, now and then). After a KeyboardInterrupt within exec(), which
    dataclasses use, Python would end itself by SIGINT.
    """
    # torchrun sends SIGTERM to all ranks when one has ended: it changes nothing now.
    for name in ("SIGINT", "SIGTERM", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # Python would try once more, and change the exit code
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code == INTERRUPTED:
        atexit._run_exitfuncs()
    # Exit functions of libraries print tracebacks if they lack memory.
    if "RANK" in os.environ or code == INTERRUPTED or _lacked:
        os._exit(code)
    sys.exit(code)


def require_memory(arguments: list[str]) -> None:
    """Raise MemoryError if a command has less address space than its libraries take."""
    is_light = not arguments or arguments[0].startswith("-") or arguments[0] == "data"
    size = LEAST if is_light else LEAST_TO_WORK
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, which has no such limit
        return
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise MemoryError(f"the command takes at least {size >> 20} MiB") from None


def lack_of_memory(error: BaseException) -> str:
    """Return the message if an error means that memory does not suffice, otherwise ""."""
    cause: BaseException | None = error
    while cause is not None:
        text, errno = str(cause), getattr(cause, "errno", None)
        is_known = errno is None and any(known in text for known in _LACKS)
        if is_known or errno == ENOMEM or isinstance(cause, MemoryError):
            limit = _memory_limit()
            remedy = "close other programs"
            if limit is not None:
                remedy = f"raise the limit of this shell (ulimit -v), now {limit >> 10} KiB"
            reason = next((line for line in text.splitlines() if line.strip()), "")
            _lacked.append(reason)
            return f"out of memory{': ' if reason else ''}{reason[:200]}; {remedy}"
        cause = cause.__cause__ or cause.__context__
    return ""


_lacked: list[str] = []  # errors that were reported as lack of memory


def _memory_limit() -> int | None:
    """Return the limit of address space in bytes; None if there is none."""
    try:
        import resource  # not on Windows
    except ModuleNotFoundError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _defect(error: BaseException) -> str:
    trace, where = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if f"{os.sep}edgewise{os.sep}" in code.co_filename:
            where = f" at {code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    reason = " ".join(str(error).split())[:300]
    return (
        f"internal error{where}: {type(error).__name__}: {reason} (please report it; "
        "PYTHONDEVMODE=1 shows the traceback)"
    )


def _open_descriptors() -> None:
    """Open standard streams that are closed: files must not get their numbers.

    A file with the number 2 would be written to by any library that prints a warning.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the smallest number


def _print(message: str) -> None:
    with suppress(OSError):
        os.write(2, f"edgewise: {message}\n".encode(errors="backslashreplace"))
