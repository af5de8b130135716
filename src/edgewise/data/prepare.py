"""From text files to a prepared corpus: count, learn a vocabulary, encode, report."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from edgewise.data.corpus import KIND, VERSION, SplitWriter, token_type
from edgewise.data.encode import Line, encode_all, readable
from edgewise.data.text import TextFile
from edgewise.data.vocabulary import Vocabulary
from edgewise.errors import DataError
from edgewise.storage import new_folder, require_free_folder, seal, write_json

# As many pairs teach the vocabulary: more change few of its pieces and cost memory.
SAMPLE = 200_000
Progress = Callable[[str, int, int], None]  # what is being done, how far, of how much


@dataclass(frozen=True)
class Bitext:
    """Two files, line by line translations of each other."""

    source: TextFile
    target: TextFile
    weight: float = 1.0

    def pairs(self) -> Iterator[tuple[Line, Line]]:
        return zip(self.source.lines(), self.target.lines(), strict=True)


def prepare(
    out: Path,
    train: Sequence[Bitext],
    valid: Sequence[Bitext] = (),
    *,
    vocab: Vocabulary | int = 32768,
    max_tokens: int = 256,
    on_bad: Literal["drop", "error"] = "drop",
    seed: int = 0,
    workers: int = 1,
    overwrite: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Write the corpus to `out` and return the report, which lies there too."""
    start = time.monotonic()
    require_free_folder(out, KIND, overwrite=overwrite)
    progress("counting lines", 0, 0)
    counts = count_pairs([*train, *valid])
    of_train, of_valid = counts[: len(train)], counts[len(train) :]
    with new_folder(out) as folder:
        if isinstance(vocab, int):
            progress("learning the vocabulary", 0, 0)
            vocabulary = learn(train, of_train, vocab, seed)
        else:
            vocabulary = vocab
        vocabulary.write(folder)
        report: dict[str, Any] = {
            "vocabulary": {"pieces": vocabulary.size, "sha256": vocabulary.digest}
        }
        splits = {}
        for name, bitexts, totals in (("train", train, of_train), ("valid", valid, of_valid)):
            if not bitexts:
                continue
            writer = SplitWriter(folder / name, token_type(vocabulary))
            with writer:
                parts = []
                for bitext, total in zip(bitexts, totals, strict=True):
                    told = partial(progress, f"encoding {bitext.source}")
                    parts.append(
                        _encode_part(
                            *(bitext, total, writer, vocabulary, max_tokens, on_bad, workers, told)
                        )
                    )
            report[name] = parts
            if sum(part["kept"] for part in parts) == 0:
                raise DataError(f"no pair of the {name} files can be used: {_reasons(parts)}")
            splits[name] = [
                {"source": p["source"], "target": p["target"]}
                | {"pairs": p["kept"], "weight": p["weight"]}
                for p in parts
            ]
        seconds = time.monotonic() - start
        report["seconds"] = round(seconds, 2)
        report["pairs_per_second"] = round(sum(counts) / seconds)
        about = {"dtype": token_type(vocabulary).name, "max_tokens": max_tokens, "splits": splits}
        write_json(folder / "corpus.json", about)
        write_json(folder / "report.json", report)
        seal(folder, KIND, VERSION)
    return report


def count_pairs(bitexts: Sequence[Bitext]) -> list[int]:
    """How many lines each pair of files has; DataError where its two counts differ."""
    files = [file for bitext in bitexts for file in (bitext.source, bitext.target)]
    failed = threading.Event()
    with ThreadPoolExecutor() as pool:
        try:
            lines = list(pool.map(lambda file: file.count(failed.is_set), files))
        except BaseException:  # an interruption, too: the pool waits for all files
            failed.set()
            raise
    for bitext, source, target in zip(bitexts, lines[0::2], lines[1::2], strict=True):
        if source != target:
            raise DataError(
                f"the two files of a corpus must have as many lines as each other; "
                f"{bitext.source} has {source:,}, {bitext.target} has {target:,}"
            )
    return lines[0::2]


def learn(bitexts: Sequence[Bitext], counts: Sequence[int], size: int, seed: int) -> Vocabulary:
    """A vocabulary from all pairs, or from a sample of them that depends on the seed only."""
    total = sum(counts)
    chosen: Sequence[int] = range(total)
    if total > SAMPLE:
        chosen = sorted(random.Random(seed).sample(range(total), SAMPLE))

    def sampled() -> Iterator[str]:
        wanted = iter(chosen)
        index = next(wanted, None)
        everything = (pair for bitext in bitexts for pair in bitext.pairs())
        for i, pair in enumerate(everything):
            if i == index:
                if not any(readable(line) for line in pair):
                    yield from (line.decode() for line in pair if line is not None)
                index = next(wanted, None)
                if index is None:
                    return

    return Vocabulary.train(sampled(), size)


def _encode_part(
    bitext: Bitext,
    total: int,
    writer: SplitWriter,
    vocabulary: Vocabulary,
    max_tokens: int,
    on_bad: str,
    workers: int,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    done = kept = 0
    dropped: Counter[str] = Counter()
    tokens = [0, 0]
    longest = [0, 0]
    for block in encode_all(bitext.pairs(), vocabulary, max_tokens, workers):
        if block.dropped and on_bad == "error":
            index, side, reason = block.dropped[0]
            file = bitext.source if side == "source" else bitext.target
            limit = f" (more than {max_tokens} tokens)" if reason == "too long" else ""
            raise DataError(
                f"line {done + index + 1:,} of {file} is unusable: {reason}{limit} "
                "(--on-bad drop leaves such pairs out)"
            )
        dropped.update(reason for _, _, reason in block.dropped)
        writer.append(block.tokens, block.lengths)
        for i in (0, 1):
            lengths = block.lengths[i::2]
            tokens[i] += int(lengths.sum())
            longest[i] = max(longest[i], int(lengths.max(initial=0)))
        kept += len(block.lengths) // 2
        done += block.pairs
        progress(done, total)
    return {
        "source": str(bitext.source),
        "target": str(bitext.target),
        "weight": bitext.weight,
        "pairs": done,
        "kept": kept,
        "dropped": dict(dropped),
        "source_tokens": tokens[0],
        "target_tokens": tokens[1],
        "longest_source": longest[0],
        "longest_target": longest[1],
    }


def _reasons(parts: Sequence[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part["dropped"])
    return ", ".join(f"{count:,} {reason}" for reason, count in total.items()) or "they are empty"
