"""edgewise data."""

import difflib
import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from edgewise.cli.console import say
from edgewise.cli.fetch_progress import fetch_progress
from edgewise.data.catalogue import CORPORA, PARTS, PublicCorpus
from edgewise.data.fetch import cache_folder, fetch, is_ready
from edgewise.data.grammar import pairs
from edgewise.errors import SettingError
from edgewise.storage import output_files, require_free_files

Folder = Annotated[Path | None, Parameter(name="--dir")]
Part = Literal["train", "valid", "test"]

data = App(name="data", help="Corpora to train on.", help_format="markdown")


@data.command(name="list")
def list_corpora(*, folder: Folder = None) -> None:
    """List the corpora that `edgewise data get` fetches.

    ```sh
    edgewise data list
    ```

    Parameters
    ----------
    folder
        Where corpora are kept. [default: $XDG_CACHE_HOME/edgewise or ~/.cache/edgewise]
    """
    row = "{:<12}  {:>10}  {:>10}  {:<16}  {}"
    print(row.format("name", "pairs", "download", "ready", "what"))
    for corpus in CORPORA.values():
        parts = ready_parts(corpus, (folder or cache_folder()) / corpus.name)
        ready = "complete" if len(parts) == len(PARTS) else " ".join(parts) or "no"
        size = f"{corpus.size / 1e6:,.1f} MB"
        print(row.format(corpus.name, f"{corpus.pairs:,}", size, ready, corpus.about))
        print(row.format("", "", "", "", corpus.home))


@data.command
def get(
    name: str,
    /,
    *,
    part: Annotated[list[Part], Parameter(consume_multiple=True, negative=())] | None = None,
    folder: Folder = None,
    mirror: str | None = None,
) -> None:
    """Fetch a corpus, ready for `edgewise prepare`, and print the folder it is in.

    What was fetched is kept and checked by its hash; the same command again goes on where it was
    stopped.

    ```sh
    edgewise data get multi30k
    edgewise data get wmt14-en-de --dir /data --part valid test
    edgewise data get wmt14-en-fr --mirror https://example.org/corpora
    ```

    Parameters
    ----------
    name
        One of those that `edgewise data list` names.
    part
        What to make ready. [default: train valid test]
    folder
        Where corpora are kept. [default: $XDG_CACHE_HOME/edgewise or ~/.cache/edgewise]
    mirror
        A folder or an address that has the files, instead of the public addresses.
    """
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=1)
        meant = f"; did you mean {near[0]}?" if near else f": there are {', '.join(CORPORA)}"
        raise SettingError(f"there is no corpus {name}{meant}")
    corpus, place, parts = CORPORA[name], folder or cache_folder(), part or PARTS
    if set(parts) <= set(ready_parts(corpus, place / name)):
        say(f"{name} is there already")
    with fetch_progress() as progress:
        out = fetch(corpus, place, parts=parts, mirror=mirror, progress=progress)
    show(corpus, out)
    print(out)


def ready_parts(corpus: PublicCorpus, folder: Path) -> list[str]:
    """Those of which all files are there."""
    lacking = {bitext.part for bitext in corpus.bitexts if not is_ready(bitext, folder)}
    return [part for part in PARTS if part not in lacking]


def show(corpus: PublicCorpus, out: Path) -> None:
    """What is there, and the commands that prepare it."""
    parts = ready_parts(corpus, out)
    for part in parts:
        count = sum(bitext.lines for bitext in corpus.bitexts if bitext.part == part)
        say(f"{part}: {count:,} pairs")
    if "train" not in parts:
        return
    source, *targets = corpus.languages
    for target in targets:
        command = ["edgewise", "prepare"]
        for prefix, wanted in (("", "train"), ("valid-", "valid")):
            texts = [b for b in corpus.bitexts if b.part == wanted and wanted in parts]
            for side, language in (("source", source), ("target", target)):
                if texts:
                    command.append(f"--{prefix}{side}")
                    command += [str(out / bitext.files[language]) for bitext in texts]
        say(shlex.join([*command, "--out", f"corpus-{source}-{target}"]))


@data.command
def generate(
    *,
    pairs: int,
    out: Path,
    seed: int = 0,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Write the built-in corpus: English and German by a small grammar, as many pairs as you like.

    ```sh
    edgewise data generate --pairs 100000 --out corpora/train   # train.en and train.de
    ```

    Parameters
    ----------
    pairs
        How many.
    out
        Beginning of the two files' names; `.en` and `.de` are added.
    seed
        Another seed, other sentences.
    overwrite
        Replace the files if they are there.
    """
    require_free_files({f"--out {path}": path for path in names(out)}, overwrite=overwrite)
    write(pairs, out, seed)
    say(f"{out}.en and {out}.de: {pairs:,} pairs")


def write(count: int, out: Path, seed: int) -> tuple[Path, Path]:
    """Write the two files; they appear when both are complete."""
    if count < 1:
        raise SettingError(f"--pairs must be 1 or more; got {count}")
    english_file, german_file = names(out)
    with output_files(english_file, german_file) as (en, de):
        for english, german in pairs(count, seed):
            en.write(f"{english}\n".encode())
            de.write(f"{german}\n".encode())
    return english_file, german_file


def names(out: Path) -> tuple[Path, Path]:
    return Path(f"{out}.en"), Path(f"{out}.de")
