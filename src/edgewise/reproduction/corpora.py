"""The corpus of a translation scale: files found, hashed, split by length, and prepared."""

import gzip
import hashlib
import itertools
import os
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewise.data.catalogue import CORPORA
from edgewise.data.encode import cores, readable
from edgewise.data.fetch import cache_folder
from edgewise.data.grammar import pairs as grammar_pairs
from edgewise.data.prepare import Bitext, count_pairs, prepare
from edgewise.data.text import TextFile
from edgewise.errors import DataError, SettingError
from edgewise.reproduction.scales import Commands, Files, Grammar, TranslationScale
from edgewise.reproduction.task import PreparedData, Say
from edgewise.storage import new_folder, read_json, sha256, write_json

PAIR_SIDES = ("source", "target")
Pair = tuple[str, str]
Bitexts = dict[str, list[tuple[TextFile, TextFile]]]


def lines_of(path: Path) -> list[str]:
    r"""Return the lines of a text file; only \n ends a line."""
    return path.read_bytes().decode().split("\n")[:-1]


def prepare_corpus(
    scale: TranslationScale, pair: str, data: Path | None, out: Path, say: Say
) -> PreparedData:
    """Prepare the corpus once in `out`; DataError if its files have changed since."""
    folder = out / "work" / "corpora" / f"{scale.name}-{pair}"
    found: Bitexts = {}
    generated: dict[str, list[Pair]] = {}
    if scale.files is not None:
        found = _find_files(scale, scale.files, pair, data)
        files = _file_hashes(found)
    elif scale.commands is not None:
        paths = _find_commands(scale, scale.commands, data)
        files = {path.name: sha256(path) for path in paths}
        generated = scale.commands.split([pair for path in paths for pair in _commands(path)])
    else:
        assert scale.grammar is not None
        generated = _generate(scale.grammar)
        files = {
            f"{part}, generated": hashlib.sha256(repr(pairs).encode()).hexdigest()
            for part, pairs in generated.items()
        }
    if (folder / "files.json").is_file():
        _require_same(read_json(folder / "files.json"), files, scale, folder, out)
        return PreparedData(folder, files)
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} exists and is not a prepared corpus: move it away")
    say(f"preparing {scale.name}, {pair}")
    with new_folder(folder) as new:
        lines: dict[str, Iterator[Pair]] = {part: iter(pairs) for part, pairs in generated.items()}
        changes_text = scale.files is not None and scale.files.remove != ""
        for part, bitexts in found.items():
            # Training files that are used whole are not copied: the paper's have gigabytes.
            if part != "train" or changes_text or scale.max_source_words is not None:
                lines[part] = _lines(bitexts, scale, strict=part != "train")
        _write(new, scale, lines)
        written = Bitext(TextFile(new / "train.source"), TextFile(new / "train.target"))
        train = [written] if "train" in lines else [Bitext(*each) for each in found["train"]]
        valid = Bitext(TextFile(new / "valid.source"), TextFile(new / "valid.target"))
        prepare(new / "corpus", train, [valid], vocab=scale.vocab_size, workers=cores())
        for side in PAIR_SIDES:
            (new / f"train.{side}").unlink(missing_ok=True)  # as large as the corpus
        write_json(new / "files.json", {"preparation": scale.preparation(), "files": files})
    return PreparedData(folder, files)


def _require_same(
    known: Any, files: dict[str, str], scale: TranslationScale, folder: Path, out: Path
) -> None:
    """Raise unless the prepared corpus was made from these files with these settings."""
    if not isinstance(known, dict) or not {"preparation", "files"} <= known.keys():
        raise DataError(f"{folder / 'files.json'} is damaged: remove {folder}")
    before, now = known["preparation"], scale.preparation()
    changed = [f"{n} was {before.get(n)}, is {now[n]}" for n in now if before.get(n) != now[n]]
    if changed:
        raise SettingError(
            f"{folder} was prepared with other settings: {'; '.join(changed)} (set it back, or "
            "give another --out)"
        )
    if known["files"] != files:
        names = sorted(files | known["files"])
        name = next(n for n in names if files.get(n) != known["files"].get(n))
        raise DataError(
            f"the corpus has changed since cells in {out} were begun: {name} is not the file "
            "that it was (restore it, or give another --out)"
        )


def _data_folder(scale: TranslationScale, name: str, data: Path | None) -> tuple[Path, str]:
    """Return the folder with the corpus, and the remedy if a file is missing from it."""
    remedy = "give the folder that has it with --data"
    if name in CORPORA:
        remedy += f", or fetch it: edgewise data get {name}"
        if data is None:
            data = cache_folder()
    if data is None:
        raise SettingError(f"{scale.name} needs a corpus, {scale.title}: {remedy}")
    if not data.is_dir():
        raise SettingError(f"there is no folder {data}: {remedy}")
    return (data / name if name and (data / name).is_dir() else data), remedy


def _find_files(scale: TranslationScale, files: Files, pair: str, data: Path | None) -> Bitexts:
    """Return the files of each part; SettingError names the missing ones."""
    languages = pair.split("-")
    folder, remedy = _data_folder(scale, (scale.catalogue or "").format(pair=pair), data)
    result: Bitexts = {}
    for part, patterns in {"train": files.train, "valid": files.valid, **files.test}.items():
        for pattern in patterns:
            sides = [sorted(folder.glob(pattern.format(language=each))) for each in languages]
            if sides[0]:
                break
        if not sides[0] or len(sides[0]) != len(sides[1]):
            wanted = " or ".join(
                pattern.format(language=language)
                for language in dict.fromkeys(languages)
                for pattern in patterns
            )
            raise SettingError(
                f"{folder} lacks {wanted}, the {part} part of {scale.name}: {remedy}"
            )
        result[part] = [(TextFile(one), TextFile(other)) for one, other in zip(*sides, strict=True)]
    return result


def _file_hashes(found: Bitexts) -> dict[str, str]:
    """Return the sha256 of each file by its part and name."""
    files = [(part, file.path) for part in found for bitext in found[part] for file in bitext]
    above = os.path.commonpath([path.parent for _, path in files])
    return {f"{part}/{path.relative_to(above)}": sha256(path) for part, path in files}


def _find_commands(scale: TranslationScale, commands: Commands, data: Path | None) -> list[Path]:
    folder, remedy = _data_folder(scale, scale.name, data)
    for name in commands.files:
        if not (folder / name).is_file():
            raise SettingError(f"{folder} lacks {name}, a part of {scale.name}: {remedy}")
    return [folder / name for name in commands.files]


def _commands(path: Path) -> Iterator[Pair]:
    """Yield commands and actions of lines `IN: … OUT: …`; I_LOOK becomes ILOOK, one token."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        command, separator, actions = line.removeprefix("IN: ").partition(" OUT: ")
        if not (line.startswith("IN: ") and separator and command.strip() and actions.strip()):
            raise DataError(f"{path}, line {number}: expected IN: command OUT: actions")
        yield command.strip(), actions.strip().replace("_", "")


def _generate(grammar: Grammar) -> dict[str, list[Pair]]:
    """Return three parts of the built-in corpus; no test source is a training source."""
    train = list(grammar_pairs(grammar.train, seed=1))
    seen = {source for source, _ in train}
    fresh = (pair for pair in grammar_pairs(100 * grammar.test, seed=3) if pair[0] not in seen)
    return {
        "train": train,
        "valid": list(grammar_pairs(grammar.valid, seed=2)),
        "test": list(itertools.islice(fresh, grammar.test)),
    }


def _lines(
    bitexts: Sequence[tuple[TextFile, TextFile]], scale: TranslationScale, *, strict: bool = True
) -> Iterator[Pair]:
    """Yield pairs of lines; unusable ones are an error if strict, otherwise left out."""
    remove = "" if scale.files is None else scale.files.remove
    for source, target in bitexts:
        count_pairs([Bitext(source, target)])  # DataError unless they have as many lines
        for number, lines in enumerate(zip(source.lines(), target.lines(), strict=True), start=1):
            reasons = [readable(line) for line in lines]
            if any(reasons):
                if strict:
                    file, reason = next(
                        found for found in zip((source, target), reasons, strict=True) if found[1]
                    )
                    raise DataError(f"line {number:,} of {file} is unusable: {reason}")
                continue
            one, other = (line.decode() for line in lines if line is not None)
            yield (one.replace(remove, ""), other.replace(remove, "")) if remove else (one, other)


def _write(folder: Path, scale: TranslationScale, lines: Mapping[str, Iterator[Pair]]) -> None:
    """Write the parts as plain text; pairs too long to train on may be added to the test."""
    held_out: list[Pair] = []
    taken: Counter[int] = Counter()
    for part, pairs in lines.items():
        written = 0
        with (
            (folder / f"{part}.source").open("w", encoding="utf-8", newline="\n") as source,
            (folder / f"{part}.target").open("w", encoding="utf-8", newline="\n") as target,
        ):
            for pair in itertools.chain(pairs, held_out if part == "test" else ()):
                words = len(pair[0].split())
                if part == "train" and words > (scale.max_source_words or words):
                    number = bisect_left(scale.buckets, words)
                    if taken[number] < scale.held_out and number < len(scale.buckets):
                        taken[number] += 1
                        held_out.append(pair)
                    continue
                written += 1
                source.write(pair[0] + "\n")
                target.write(pair[1] + "\n")
        if not written:
            raise DataError(f"the {part} part of {scale.name} has no sentence")
