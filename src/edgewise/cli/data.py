"""edgewise data."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from edgewise.cli.console import say
from edgewise.data.grammar import pairs
from edgewise.errors import SettingError

data = App(name="data", help="Corpora to train on.", help_format="markdown")


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
    for path in names(out):
        if path.exists() and not overwrite:
            raise SettingError(f"{path} exists already (--overwrite replaces it)")
    write(pairs, out, seed)
    say(f"{out}.en and {out}.de: {pairs:,} pairs")


def write(count: int, out: Path, seed: int) -> tuple[Path, Path]:
    """The two files."""
    if count < 1:
        raise SettingError(f"--pairs must be 1 or more; got {count}")
    out.parent.mkdir(parents=True, exist_ok=True)
    english_file, german_file = names(out)
    with (
        english_file.open("w", encoding="utf-8") as en,
        german_file.open("w", encoding="utf-8") as de,
    ):
        for english, german in pairs(count, seed):
            en.write(english + "\n")
            de.write(german + "\n")
    return english_file, german_file


def names(out: Path) -> tuple[Path, Path]:
    return Path(f"{out}.en"), Path(f"{out}.de")
