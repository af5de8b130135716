"""The exceptions of edgewise. Catch `EdgewiseError` to catch them all."""


class EdgewiseError(Exception):
    """Anything edgewise refuses to do."""


class ArgumentError(EdgewiseError, ValueError):
    """An argument that cannot be used: the message names it, what was expected and what came."""
