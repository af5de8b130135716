"""edgewise score."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from edgewise.cli.console import require_streams, say, stage_progress
from edgewise.cli.lines import WINDOW_BYTES, texts_of
from edgewise.cli.model_options import Models, Run, load_translator
from edgewise.data.text import TextFile
from edgewise.errors import DataError

if TYPE_CHECKING:
    from edgewise.decoding.translator import EncodedTexts

WINDOW = 2048


def score(
    *,
    model: Models,
    source: str,
    target: str,
    format: Literal["text", "jsonl", "tsv"] = "text",
    run: Run = None,
) -> None:
    """Say how likely given translations are, a line each.

    The log-probability is that of all tokens and the end. A pair that cannot be scored (not UTF-8,
    too long) gives nan, is named on stderr, and makes the command exit with 65 in the end.

    ```sh
    edgewise score --model runs/demo/model --source test.en --target test.de > scores
    ```

    Parameters
    ----------
    model
        Model folder; several score together (the mean of their probabilities).
    source
        File of sentences, one a line, plain or gzip; `a.tsv:2` is a column of a table.
    target
        Their translations.
    format
        text: the log-probability. tsv: that, the score with the length penalty, and the number of
        tokens. jsonl: the same as an object for each line.
    """
    require_streams("stdout")
    files = TextFile.parse(source), TextFile.parse(target)
    counts = [file.count() for file in files]
    if counts[0] != counts[1]:
        raise DataError(
            f"{files[0]} and {files[1]} must have as many lines; they have {counts[0]:,} and "
            f"{counts[1]:,}"
        )
    translator = load_translator(model, run, searched=False)
    refused = done = 0
    lines = [file.lines() for file in files]
    with stage_progress(bars=not sys.stdout.isatty()) as progress:
        while window := _window(*lines):
            sides: list[EncodedTexts] = []
            errors: dict[int, str] = {}
            for file, side in zip(files, zip(*window, strict=True), strict=True):
                texts, wrong = texts_of(side)
                sides.append(translator.encode(texts, target=len(sides) == 1))
                wrong |= sides[-1].refusals
                errors |= {i: f"line {done + i + 1:,} of {file} {e}" for i, e in wrong.items()}
            left, right = (side.without(errors) for side in sides)
            for i, found in enumerate(translator.score(left, right)):
                if i in errors:
                    say(errors[i])
                values = (found.log_probability, found.score, len(found.pieces) + 1)
                _write(format, done + i + 1, values, errors.get(i))
            sys.stdout.flush()
            done, refused = done + len(window), refused + len(errors)
            progress("scoring", done, counts[0])
    if refused:
        raise DataError(f"{refused:,} of {done:,} lines were not scored")


def _window(
    source: Iterator[bytes | None], target: Iterator[bytes | None]
) -> list[tuple[bytes | None, bytes | None]]:
    """The next pairs of lines, so many that they fit into memory."""
    pairs: list[tuple[bytes | None, bytes | None]] = []
    held = 0
    for pair in zip(source, target, strict=True):
        pairs.append(pair)
        held += sum(len(line or b"") for line in pair)
        if len(pairs) == WINDOW or held >= WINDOW_BYTES:
            break
    return pairs


def _write(format: str, line: int, values: tuple[float, float, int], error: str | None) -> None:
    log_probability, with_penalty, tokens = values
    if format == "jsonl":
        record = {"line": line, "log_probability": log_probability}
        record |= {"score": with_penalty, "tokens": tokens}
        print(json.dumps({"line": line, "error": error} if error else record))
        return
    cells = (
        ["nan", "nan", "0"]
        if error
        else [f"{log_probability:.6f}", f"{with_penalty:.6f}", str(tokens)]
    )
    print(cells[0] if format == "text" else "\t".join(cells))
