"""The exceptions of edgewise. Catch `EdgewiseError` to catch them all."""


class EdgewiseError(Exception):
    """Anything edgewise refuses to do."""


class ArgumentError(EdgewiseError, ValueError):
    """An argument that cannot be used: the message names it, what was expected and what came."""


class SettingError(EdgewiseError, ValueError):
    """A setting or an option that cannot be used: what was set, what was expected, what to do."""


class DataError(EdgewiseError):
    """A file whose content cannot be used: damaged, of another kind, or not what it was."""
