"""edgewise prepare."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from edgewise.cli.console import console, say, stage_progress
from edgewise.data import prepare as preparing
from edgewise.data.encode import REASONS, cores
from edgewise.data.text import TextFile
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import SettingError

Files = Annotated[list[str], Parameter(consume_multiple=True, negative=())]


def prepare(
    *,
    source: Files,
    target: Files,
    out: Path,
    valid_source: Files | None = None,
    valid_target: Files | None = None,
    weight: Annotated[list[float], Parameter(consume_multiple=True, negative=())] | None = None,
    vocab_size: int | None = None,
    vocab: Path | None = None,
    max_tokens: int = 256,
    on_bad: Literal["drop", "error"] = "drop",
    seed: int = 0,
    workers: int | None = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Turn text files into a corpus that can be trained on.

    Files have one sentence a line, plain or gzip; `a.tsv:2` is the second column of
    tab-separated values. Line i of a source file is translated by line i of its target file.

    ```sh
    edgewise prepare --source train.en --target train.de \\
        --valid-source valid.en --valid-target valid.de --out corpus
    edgewise prepare --source a.en b.tsv.gz:2 --target a.de b.tsv.gz:3 --weight 1 2.5 \\
        --vocab-size 16384 --out both
    ```

    Parameters
    ----------
    source
        Files in the language to translate from.
    target
        Their translations, as many files.
    out
        Folder to write.
    valid_source
        Files to validate on.
    valid_target
        Their translations.
    weight
        How often an epoch shows each pair of the 1st, 2nd, … corpus. [default: 1 each]
    vocab_size
        Pieces of the vocabulary, shared by both languages. [default: 32768]
    vocab
        Take the vocabulary of this file, corpus or model folder instead of learning one.
    max_tokens
        Longest sentence, in pieces; pairs with a longer one are bad.
    on_bad
        Pairs that are empty, too long or not UTF-8: drop and count them, or stop at the first.
    seed
        Of the sample that a large corpus's vocabulary is learnt from.
    workers
        Processes. [default: one a core]
    overwrite
        Replace the folder if it is there.
    """
    for name, value, least in (
        ("vocab-size", vocab_size, 1),
        ("max-tokens", max_tokens, 1),
        ("workers", workers, 1),
        ("seed", seed, 0),
    ):
        if value is not None and value < least:
            raise SettingError(f"--{name} must be {least} or more; got {value}")
    if vocab is not None and vocab_size is not None:
        raise SettingError("give --vocab, which has its size, or --vocab-size, not both")
    train = bitexts("source", source, target, weight)
    valid = bitexts("valid-source", valid_source or [], valid_target or [], None)
    with stage_progress() as progress:
        report = preparing.prepare(
            *(out, train, valid),
            vocab=(vocab_size or 32768) if vocab is None else Vocabulary.load(vocab),
            max_tokens=max_tokens,
            on_bad=on_bad,
            seed=seed,
            workers=workers or cores(),
            overwrite=overwrite,
            progress=progress,
        )
    show(report, out)


def bitexts(
    name: str, source: list[str], target: list[str], weights: list[float] | None
) -> list[preparing.Bitext]:
    """Files by their names, pairwise."""
    if len(source) != len(target):
        raise SettingError(
            f"--{name} must have as many files as --{name.replace('source', 'target')}; got "
            f"{len(source)} and {len(target)}"
        )
    weights = [1.0] * len(source) if weights is None else weights
    if len(weights) != len(source) or not all(0 < weight < 1e6 for weight in weights):
        raise SettingError(
            f"--weight must have a number above 0 for each of the {len(source)} corpora; "
            f"got {' '.join(map(str, weights))}"
        )
    return [
        preparing.Bitext(TextFile.parse(a), TextFile.parse(b), weight)
        for a, b, weight in zip(source, target, weights, strict=True)
    ]


def show(report: dict[str, Any], out: Path) -> None:
    """The report as a table."""
    table = Table(title=f"{escape(str(out))}: {report['vocabulary']['pieces']:,} pieces")
    parts = [(split, part) for split in ("train", "valid") for part in report.get(split, [])]
    reasons = [r for r in REASONS if any(r in part["dropped"] for _, part in parts)]
    table.add_column("")
    for column in ("pairs", "kept", *reasons, "source tokens", "target tokens"):
        table.add_column(column, justify="right")
    for split, part in parts:
        numbers = [part["pairs"], part["kept"]]
        numbers += [part["dropped"].get(reason, 0) for reason in reasons]
        numbers += [part["source_tokens"], part["target_tokens"]]
        table.add_row(escape(f"{split}: {Path(part['source']).name}"), *(f"{n:,}" for n in numbers))
    console.print(table)
    for _, part in parts:
        if part["kept"] < 0.9 * part["pairs"]:
            say(
                f"warning: {1 - part['kept'] / part['pairs']:.0%} of {part['source']} was dropped; "
                "is it UTF-8, and the other file its translation line by line?"
            )
    say(
        f"{report['seconds']} s, {report['pairs_per_second']:,} pairs a second; the same as JSON: "
        f"{out / 'report.json'}"
    )
