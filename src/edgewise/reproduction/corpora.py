"""The corpus of a scale: its files found, hashed, cut to what is trained on, and prepared."""

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.data.catalogue import CORPORA
from edgewise.data.encode import cores, readable
from edgewise.data.fetch import cache_folder
from edgewise.data.grammar import pairs as grammar_pairs
from edgewise.data.prepare import Bitext, count_pairs, prepare
from edgewise.data.text import TextFile
from edgewise.errors import DataError, SettingError
from edgewise.reproduction.scales import Files, Grammar, Scale
from edgewise.storage import new_folder, read_json, sha256, write_json

PARTS = ("train", "valid", "test")
Say = Callable[[str], None]
Pair = tuple[str, str]


@dataclass(frozen=True)
class Texts:
    """Ready for the cells of a scale and a pair of languages."""

    corpus: Path  # prepared
    files: dict[str, str]  # sha256 of what it was made from
    folder: Path

    def part(self, name: str) -> list[Pair]:
        """Sources and references of valid or test."""
        return list(zip(*(lines_of(self.folder / f"{name}.{side}") for side in SIDES), strict=True))


SIDES = ("source", "target")


def lines_of(path: Path) -> list[str]:
    r"""The lines of a text file, of which \n alone ends one."""
    return path.read_bytes().decode().split("\n")[:-1]


def texts_of(scale: Scale, pair: str, data: Path | None, out: Path, say: Say) -> Texts:
    """The corpus, prepared once and kept in `out`; DataError if its files have changed since."""
    folder = out / "work" / "corpora" / f"{scale.name}-{pair}"
    found = None if scale.files is None else _find(scale, scale.files, pair, data)
    files = _hashes(scale, found)
    if (folder / "files.json").is_file():
        _require_same(read_json(folder / "files.json"), files, scale, folder, out)
        return Texts(folder / "corpus", files, folder)
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} exists and is not a prepared corpus: move it away")
    say(f"preparing {scale.name}, {pair}")
    with new_folder(folder) as new:
        if found is None:
            assert scale.grammar is not None
            lines = _generated(scale.grammar)
        else:
            lines = {part: _lines(found[part], scale) for part in ("valid", "test")}
            if _is_cut(scale):
                lines["train"] = _lines(found["train"], scale, strict=False)
        _write(new, scale, lines)
        bitexts = {
            # What need not be cut is not copied: the paper's corpora have gigabytes.
            part: [Bitext(TextFile(new / f"{part}.source"), TextFile(new / f"{part}.target"))]
            if part in lines or found is None
            else [Bitext(*bitext) for bitext in found[part]]
            for part in ("train", "valid")
        }
        prepare(
            new / "corpus",
            bitexts["train"],
            bitexts["valid"],
            vocab=scale.vocab_size,
            workers=cores(),
        )
        for side in SIDES:
            (new / f"train.{side}").unlink(missing_ok=True)  # as large as the corpus
        write_json(new / "files.json", {"preparation": scale.preparation(), "files": files})
    return Texts(folder / "corpus", files, folder)


def _require_same(known: Any, files: dict[str, str], scale: Scale, folder: Path, out: Path) -> None:
    """Raise unless the prepared corpus is of these files, prepared like this."""
    if not isinstance(known, dict) or not {"preparation", "files"} <= known.keys():
        raise DataError(f"{folder / 'files.json'} is damaged: remove {folder}")
    before, now = known["preparation"], scale.preparation()
    changed = [f"{n} was {before.get(n)}, is {now[n]}" for n in now if before.get(n) != now[n]]
    if changed:
        raise SettingError(
            f"{folder} was prepared otherwise: {'; '.join(changed)} (set it back, or give another "
            "--out)"
        )
    if known["files"] != files:
        names = sorted(files | known["files"])
        name = next(n for n in names if files.get(n) != known["files"].get(n))
        raise DataError(
            f"the corpus has changed since cells in {out} were begun: {name} is not the file "
            "that it was (restore it, or give another --out)"
        )


def _is_cut(scale: Scale) -> bool:
    removed = scale.files is not None and scale.files.remove
    return bool(removed) or scale.max_source_words is not None


Bitexts = dict[str, list[tuple[TextFile, TextFile]]]


def _find(scale: Scale, files: Files, pair: str, data: Path | None) -> Bitexts:
    """The files of each part; SettingError says which ones are not there, and what to do."""
    source, target = pair.split("-")
    name = (scale.catalogue or "").format(pair=pair)
    remedy = "give the folder that has it with --data"
    if name in CORPORA:
        remedy += f", or fetch it: edgewise data get {name}"
        if data is None:
            data = cache_folder()
    if data is None:
        raise SettingError(f"{scale.name} needs a corpus, {scale.title}: {remedy}")
    if not data.is_dir():
        raise SettingError(f"there is no folder {data}: {remedy}")
    folder = data / name if name and (data / name).is_dir() else data
    result: Bitexts = {}
    for part in PARTS:
        patterns = getattr(files, part)
        for pattern in patterns:
            sides = [
                sorted(folder.glob(pattern.format(language=language)))
                for language in (source, target)
            ]
            if sides[0]:
                break
        if not sides[0] or len(sides[0]) != len(sides[1]):
            wanted = " or ".join(
                f"{pattern.format(language=language)}"
                for language in dict.fromkeys((source, target))
                for pattern in patterns
            )
            raise SettingError(
                f"{folder} lacks {wanted}, the {part} part of {scale.name}: {remedy}"
            )
        columns = [files.columns.get(language) for language in (source, target)]
        result[part] = [
            (_text(one, columns[0]), _text(other, columns[1]))
            for one, other in zip(*sides, strict=True)
        ]
    return result


def _text(path: Path, column: int | None) -> TextFile:
    return TextFile.parse(str(path) if column is None else f"{path}:{column}")


def _hashes(scale: Scale, found: Bitexts | None) -> dict[str, str]:
    """Of each file by its part and name, or of what the grammar says."""
    if found is None:
        assert scale.grammar is not None
        generated = _generated(scale.grammar)
        return {
            f"{part}, generated": hashlib.sha256(repr(list(generated[part])).encode()).hexdigest()
            for part in PARTS
        }
    files = [(part, file.path) for part in PARTS for bitext in found[part] for file in bitext]
    above = os.path.commonpath([path.parent for _, path in files])
    return {f"{part}/{path.relative_to(above)}": sha256(path) for part, path in files}


def _generated(grammar: Grammar) -> dict[str, Iterator[Pair]]:
    """Three parts; no source of the test is among those trained on."""
    train = list(grammar_pairs(grammar.train, seed=1))
    seen = {source for source, _ in train}
    fresh = (pair for pair in grammar_pairs(100 * grammar.test, seed=3) if pair[0] not in seen)
    return {
        "train": iter(train),
        "valid": iter(list(grammar_pairs(grammar.valid, seed=2))),
        "test": itertools.islice(fresh, grammar.test),
    }


def _lines(
    bitexts: Sequence[tuple[TextFile, TextFile]], scale: Scale, *, strict: bool = True
) -> Iterator[Pair]:
    """Pairs of lines; those that cannot be used are an error if strict, else left out."""
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


def _write(folder: Path, scale: Scale, lines: dict[str, Iterator[Pair]]) -> None:
    """The parts as plain text; what is too long to train on may be tested on."""
    held_out: list[Pair] = []
    taken: Counter[int] = Counter()
    for part in (part for part in PARTS if part in lines):
        written = 0
        with (
            (folder / f"{part}.source").open("w", encoding="utf-8", newline="\n") as source,
            (folder / f"{part}.target").open("w", encoding="utf-8", newline="\n") as target,
        ):
            for pair in itertools.chain(lines[part], held_out if part == "test" else ()):
                words = len(pair[0].split())
                if part == "train" and words > (scale.max_source_words or words):
                    number = bucket(words, scale.buckets)
                    if taken[number] < scale.held_out and number < len(scale.buckets):
                        taken[number] += 1
                        held_out.append(pair)
                    continue
                written += 1
                source.write(pair[0] + "\n")
                target.write(pair[1] + "\n")
        if not written:
            raise DataError(f"the {part} part of {scale.name} has no sentence")


def bucket(words: int, last: Sequence[int]) -> int:
    """The number of the first bucket that takes so many words; one more than there are if none."""
    return next((i for i, most in enumerate(last) if words <= most), len(last))
