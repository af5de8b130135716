"""The command `edgewise`."""

import sys

from edgewise.cli.process import execute, leave, raise_pending, require_memory


def main() -> None:
    """Run the command that the command line names, and exit."""
    leave(execute(_run))


def _run() -> int:
    require_memory(sys.argv[1:])
    try:
        from edgewise.cli.main import run
    except ModuleNotFoundError as error:
        sys.exit(f"edgewise: the commands need {error.name}: pip install 'edgewise[mt]'")
    raise_pending()
    return run(sys.argv[1:])
