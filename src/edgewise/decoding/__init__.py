"""Text in, text out."""

from edgewise.decoding.translator import Translator

__all__ = ["Translator"]
