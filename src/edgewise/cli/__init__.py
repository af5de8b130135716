"""The command `edgewise`."""

from edgewise.cli.main import main

__all__ = ["main"]
