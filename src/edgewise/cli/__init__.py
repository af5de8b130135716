"""The command `edgewise`."""

import sys


def main() -> None:
    """Run the command that the command line names, and exit."""
    import _signal  # type: ignore[import-not-found]  # unlike `signal`, it imports nothing

    # Until `execute` handles it, Ctrl-C ends the process without a traceback.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from edgewise.cli.process import execute, leave

    leave(execute(_run))


def _run() -> int:
    from edgewise.cli.process import raise_pending, require_memory

    require_memory(sys.argv[1:])
    try:
        from edgewise.cli.main import run
    except ModuleNotFoundError as error:
        sys.exit(f"edgewise: the commands need {error.name}: pip install 'edgewise[mt]'")
    raise_pending()
    return run(sys.argv[1:])
