"""edgewise translate."""

import errno
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from cyclopts import Parameter

from edgewise.cli.console import require_streams, say, stage_progress
from edgewise.cli.lines import texts_of, windows
from edgewise.cli.model_options import Decoding, Models, Run, load_translator
from edgewise.data.text import TextFile
from edgewise.errors import DataError, SettingError
from edgewise.storage import output_file, require_free_files

if TYPE_CHECKING:
    from edgewise.decoding import Translation, Translator
    from edgewise.decoding.translator import EncodedTexts

Format = Literal["text", "jsonl", "tsv"]
FIRST_WINDOW, WINDOW = 64, 2048


def translate(
    *,
    model: Models,
    decoding: Decoding = None,
    format: Format = "text",
    prefixes: str | None = None,
    alignments: Path | None = None,
    run: Run = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    r"""Translate standard input, a sentence a line, to standard output, a line each.

    Lines come out in order while others are still read. An empty line gives an empty line; so does
    one that cannot be translated (not UTF-8, too long), which is named on stderr and makes the
    command exit with 65 in the end.

    ```sh
    edgewise translate --model runs/demo/model < in.en > out.de
    edgewise translate --model a b c --beam 8 --n-best 4 --format jsonl < in.en > out.jsonl
    edgewise translate --model runs/demo/model --sample --top-k 10 --seed 7 < in.en > out.de
    ```

    Parameters
    ----------
    model
        Model folder; several translate together (the mean of their probabilities).
    format
        text: the best translation. tsv: line number, rank, score, log-probability, translation
        (and alignment), a row for each of the n-best. jsonl: the same as an object for each line.
    prefixes
        File with what each translation begins with, a line each.
    alignments
        File to write: the words of source and translation that belong together, as `0-0 1-2`.
    overwrite
        Replace the file of alignments if it is there.
    """
    require_streams("stdin", "stdout")
    starts = None if prefixes is None else TextFile.parse(prefixes)
    used = {str(folder): folder for folder in model}
    used |= {} if starts is None else {str(starts.path): starts.path}
    for name, stream in (("standard input", sys.stdin), ("standard output", sys.stdout)):
        used[name] = Path(f"/dev/fd/{stream.fileno()}")  # which may be a file
    require_free_files({"--alignments": alignments}, overwrite=overwrite, used=used)
    translator = load_translator(model, run, decoding)
    n_best = translator.settings.n_best
    if format == "text" and n_best > 1:
        raise SettingError(
            f"--format text has one line for each input line; --n-best {n_best} needs --format "
            "jsonl or tsv"
        )
    if sys.stdin.isatty():
        say("a sentence a line, please; Ctrl-D ends")
    began, refused = time.monotonic(), 0
    with ExitStack() as stack:
        links = None if alignments is None else stack.enter_context(output_file(alignments))
        # Bars would stand between the translations, if these go to the terminal too.
        progress = stack.enter_context(stage_progress(bars=not sys.stdout.isatty()))
        writer = _Writer(format, sys.stdout.buffer, links)
        begun = _Prefixes(starts, translator)
        done = 0
        for window in windows(sys.stdin.fileno(), FIRST_WINDOW, WINDOW):
            beginnings = begun.next(len(window))
            ready = window if beginnings is None else window[: len(beginnings)]
            refused += _translated(translator, ready, beginnings, writer)
            done += len(ready)
            progress("translating", done, 0)
            if begun.failure is not None:  # told when the lines before are written
                raise begun.failure
        begun.end()
    seconds = time.monotonic() - began
    say(f"{done:,} lines in {seconds:.1f} s")
    if refused:
        raise DataError(f"{refused:,} of {done:,} lines were not translated")


def _translated(
    translator: "Translator",
    lines: Sequence[bytes],
    prefixes: "EncodedTexts | None",
    writer: "_Writer",
) -> int:
    """Write the translations of some lines; how many were refused."""
    texts, errors = texts_of(lines)
    source = translator.encode(texts)
    errors |= source.refusals
    found = translator.translations(source, prefixes=prefixes, alignments=writer.links is not None)
    for i, (text, translations) in enumerate(zip(source.texts, found, strict=True)):
        if i in errors:
            say(f"line {writer.line + 1:,} {errors[i]}")
        writer.write(text, translations, errors.get(i))
    writer.flush()
    return len(errors)


class _Writer:
    """Translations in one of the formats."""

    def __init__(self, format: Format, out: BinaryIO, links: BinaryIO | None) -> None:
        self.format, self.out, self.links, self.line = format, out, links, 0

    def write(self, source: str, translations: Sequence["Translation"], error: str | None) -> None:
        self.line += 1
        self.out.write("".join(self._rows(source, translations, error)).encode())
        if self.links is not None:
            self.links.write((translations[0].pharaoh + "\n").encode())

    def flush(self) -> None:
        self.out.flush()
        if self.links is not None:
            try:
                self.links.flush()
            except BrokenPipeError:  # only of stdout is that no failure
                raise OSError(errno.EIO, "the reader of the alignments has closed them") from None

    def _rows(
        self, source: str, translations: Sequence["Translation"], error: str | None
    ) -> Iterator[str]:
        if self.format == "text":
            yield translations[0].text + "\n"
        elif self.format == "tsv":
            for rank, each in enumerate(translations):
                values = (
                    ["nan"] * 2
                    if error
                    else [f"{value:.6f}" for value in (each.score, each.log_probability)]
                )
                row = [str(self.line), str(rank + 1), *values, each.text.replace("\t", " ")]
                yield "\t".join([*row, each.pharaoh] if self.links is not None else row) + "\n"
        elif error:
            yield json.dumps({"line": self.line, "error": error}, ensure_ascii=False) + "\n"
        else:
            record = {
                "line": self.line,
                "source": source,
                "translations": [self._object(each) for each in translations],
            }
            yield json.dumps(record, ensure_ascii=False) + "\n"

    def _object(self, each: "Translation") -> dict[str, object]:
        result: dict[str, object] = {
            "text": each.text,
            "score": each.score,
            "log_probability": each.log_probability,
            "pieces": each.pieces,
        }
        return result | ({"alignment": each.pharaoh} if self.links is not None else {})


class _Prefixes:
    """What translations begin with, as many at a time as there are lines."""

    def __init__(self, file: TextFile | None, translator: "Translator") -> None:
        self.file, self.line, self._translator = file, 0, translator
        self.failure: DataError | None = None
        self._lines = iter(()) if file is None else file.lines()

    def next(self, count: int) -> "EncodedTexts | None":
        """Return the next `count` prefixes, or None without a file.

        At a line that is missing or unusable, return those before it and set `failure`.
        """
        if self.file is None:
            return None
        lines = list(islice(self._lines, count))
        texts, errors = texts_of(lines)
        encoded = self._translator.encode(texts, target=True)
        errors |= encoded.refusals
        if errors:
            first = min(errors)
            number = self.line + first + 1
            self.failure = DataError(f"line {number:,} of {self.file} {errors[first]}")
            return encoded.first(first)
        self.line += len(lines)
        if len(lines) < count:
            self.failure = DataError(f"{self.file} has no line {self.line + 1:,}; the input has")
        return encoded

    def end(self) -> None:
        if self.file is not None and any(True for _ in self._lines):
            raise DataError(f"{self.file} has more lines than the input, {self.line:,}")
