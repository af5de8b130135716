"""Sentencepiece models of other toolkits."""

from pathlib import Path

import sentencepiece

from edgewise.errors import DataError

LARGEST = 256 << 20  # bytes of a model


def text_pieces(model: bytes, file: Path) -> set[str]:
    """What text can be cut into; DataError if the file's content is no sentencepiece model."""
    try:
        # Nothing would be taken for a model without pieces.
        processor = sentencepiece.SentencePieceProcessor(model_proto=model or b"none")
    except (RuntimeError, OSError, ValueError):
        raise DataError(f"{file} is not a sentencepiece model, or damaged") from None
    return {
        str(processor.id_to_piece(i))
        for i in range(processor.vocab_size())
        if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i))
    }
