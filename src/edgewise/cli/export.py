"""edgewise export."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from edgewise.cli.console import say

export = App(name="export", help="A model for another engine.", help_format="markdown")


@export.command
def ctranslate2(
    *, model: Path, out: Path, overwrite: Annotated[bool, Parameter(negative=())] = False
) -> None:
    """Write a model for CTranslate2, in float32: the same scores, by a fast C++ engine.

    Its heads share their tables of relative positions (tables = "layer" or "shared"), and it has no
    sinusoids beside them. Its length penalty is another: with 0 it finds what `edgewise translate
    --length-penalty 0` finds.

    ```sh
    edgewise export ctranslate2 --model models/de --out exported/de
    ```

    Parameters
    ----------
    model
        Model folder.
    out
        Folder to write.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.data.vocabulary import Vocabulary
    from edgewise.interop.ctranslate2 import decoding_options, export

    export(model, out, overwrite=overwrite)
    size = (out / "model.bin").stat().st_size
    options = decoding_options(Vocabulary.load(out))
    written = "".join(f", {name}={value!r}" for name, value in options.items())
    say(f"{out}: a model for CTranslate2, {size / 1e6:,.1f} MB; greedy decoding of pieces is")
    say(f"ctranslate2.Translator({str(out)!r}).translate_batch(pieces, beam_size=1{written})")
