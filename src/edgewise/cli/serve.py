"""edgewise serve."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import Parameter

from edgewise.cli.console import say
from edgewise.cli.model_options import Run, load_translator
from edgewise.errors import EdgewiseError, SettingError
from edgewise.server.limits import Limits

DEMO = Path("runs/demo/model")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)


@dataclass(frozen=True)
class Limited:
    """Limits of requests."""

    max_characters: Annotated[
        int, Parameter(help="Maximum characters per request, over all texts.")
    ] = Limits.characters
    max_waiting: Annotated[int, Parameter(help="Maximum requests at a time.")] = Limits.waiting
    timeout: Annotated[
        float, Parameter(help="Maximum seconds per answer, or per sentence of a stream.")
    ] = Limits.seconds

    def __post_init__(self) -> None:
        for name in ("max_characters", "max_waiting"):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"--{name.replace('_', '-')} must be 1 or more; got {getattr(self, name)}"
                )
        if not 0 < self.timeout <= 3600:
            raise SettingError(f"--timeout must be above 0 and at most 3600; got {self.timeout:g}")


def serve(
    *,
    model: Annotated[list[str] | None, Parameter(negative=())] = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: Annotated[list[str] | None, Parameter(negative=())] = None,
    limits: Annotated[Limited | None, Parameter(name="*")] = None,
    run: Run = None,
) -> None:
    """Serve models over HTTP: an API for clients of LibreTranslate, and a web page.

    A model's languages are those of its NAME, if that is like en-de, else those of its folder. On
    SIGTERM the server answers the requests that it has accepted, then exits.

    ```sh
    edgewise serve                          # what `edgewise demo` trained
    edgewise serve --model models/en-de --model fr=models/en-fr --port 8080
    curl localhost:8000/translate -d q="The dog sleeps." -d source=en -d target=de
    ```

    Parameters
    ----------
    model
        Model folder, or NAME=FOLDER; may be repeated. [default: runs/demo/model]
    host
        Address to listen on; 0.0.0.0 is all of this machine's.
    port
        Port to listen on; 0 chooses a free one.
    allow_host
        Host name that requests may use, such as translate.example.org; may be repeated. The value
        `*` accepts any name. IP addresses, localhost, this machine's host name and the value of
        --host are always accepted.
    """
    try:
        from edgewise.server.models import Models, Served, languages, named
        from edgewise.server.run import Server, bound, compute_thread
        from edgewise.server.tasks import seconds_per_character
    except ModuleNotFoundError as error:
        raise EdgewiseError(
            f"the server needs {error.name}: pip install 'edgewise[server]'"
        ) from None
    limits = limits or Limited()
    hosts = frozenset([host.lower(), *map(_host, allow_host or [])])
    if model is None and not DEMO.is_dir():
        raise SettingError(
            f"there is no model at {DEMO} yet: `make demo` or `edgewise demo` trains one in about "
            "five minutes; or give a model folder with --model"
        )
    folders = [named(value) for value in model or [str(DEMO)]]
    listener = bound(host, port)
    thread = compute_thread()
    served = []
    with _leaving_at_once():
        for name, folder in folders:
            translator = thread.submit(load_translator, [folder], run).result()
            pace = thread.submit(seconds_per_character, translator).result()
            source, target = languages(name, folder)
            served.append(Served(name or folder.resolve().name, source, target, translator, pace))
            say(f"{served[-1].name}: {source} to {target}, {folder}")
    models = Models(served)
    address, found = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    asked = Limits(
        characters=limits.max_characters,
        waiting=limits.max_waiting,
        seconds=limits.timeout,
        hosts=hosts,
    )
    ready = f"http://{shown}:{found} has the page, /docs the API; Ctrl-C ends"
    ended = Server(models, asked, listener, thread, lambda: say(ready)).serve_until_stopped()
    if ended.cut_off:
        say(f"{ended.cut_off} requests were cut off, after {limits.timeout:g} s")
    else:
        say("all that was asked is answered")
    if ended.signal == signal.SIGINT:
        raise KeyboardInterrupt


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Exit on a signal without waiting for the thread that loads a model: there is nothing to save.

    Python would wait for it, and end in a traceback at a second signal.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        ended = b"interrupted" if number == signal.SIGINT else b"terminated"
        with suppress(OSError):
            os.write(2, b"edgewise: " + ended + b"\n")  # `say` may be at work
        os._exit(128 + number)

    # Python allows signal handlers in the main thread only; what is ignored (nohup) stays so.
    handled = [
        each
        for each in (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(each) is not signal.SIG_IGN
    ]
    before = {each: signal.signal(each, leave) for each in handled}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _host(name: str) -> str:
    """Return a name as it is compared with Host headers; SettingError if it is not a host name."""
    if name != "*" and not _NAME.fullmatch(name):
        raise SettingError(
            f"--allow-host must be a name without port, such as translate.example.org, or *; "
            f"got {name!r}"
        )
    return name.lower().removesuffix(".")
