"""The command `edgewise`."""

import sys


def main() -> None:
    """Run the command that the command line names, and exit."""
    try:
        from edgewise.cli.main import main as run
    except KeyboardInterrupt:  # before there is anybody to say so
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.exit(f"edgewise: the commands need {error.name}: pip install 'edgewise[mt]'")
    run()
