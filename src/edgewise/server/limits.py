"""What a stranger may ask for."""

from dataclasses import dataclass

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Of one request, and of all that wait."""

    requests: int = 512  # at a time, those included whose bodies are not there yet
    characters: int = 20_000  # of all texts of a request
    sentences: int = 1000  # of them
    waiting: int = 256  # requests that are being answered or wait for it
    seconds: float = 30.0  # until an answer, or the next sentence of a stream
    explained_tokens: int = 64  # of a sentence, or of its translation
    body_seconds: float = 10.0
    header_seconds: float = 10.0
    discarded_bytes: int = 8 * MEBIBYTE  # of a body that is too large, so that its sender hears so
    hosts: frozenset[str] = frozenset()  # names that the server answers to, beyond its own; *: any

    @property
    def body_bytes(self) -> int:
        r"""Of a body: every character may be written as `\ud83d\ude00`, and there are names."""
        return 12 * self.characters + (1 << 14)
