"""Text in, text out."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgewise.decoding.settings import DecodingSettings
    from edgewise.decoding.translator import Translation, Translator

__all__ = ["DecodingSettings", "Translation", "Translator"]

_MODULES = {"DecodingSettings": "settings", "Translation": "translator", "Translator": "translator"}


def __getattr__(name: str) -> object:
    # At first use, not at import: the flags of a command need the settings alone, not PyTorch.
    if name in _MODULES:
        return getattr(importlib.import_module(f"edgewise.decoding.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'edgewise.decoding' has no attribute {name!r}")
