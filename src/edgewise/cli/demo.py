"""edgewise demo."""


def demo() -> None:
    """x"""
