"""edgewise import."""

from pathlib import Path
from shlex import quote

from cyclopts import App

from edgewise.cli.console import say
from edgewise.cli.export import Overwrite

importing = App(name="import", help="A model from another toolkit.", help_format="markdown")


@importing.command
def opennmt(
    file: Path,
    /,
    *,
    tokenizer: Path,
    out: Path,
    target_tokenizer: Path | None = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a model folder from a checkpoint of OpenNMT-py 3 with relative positions.

    The checkpoint is read as data: one that holds anything else is refused, and none of it is run.

    ```sh
    edgewise import opennmt model_step_100000.pt --tokenizer spm.model --out models/de
    ```

    Parameters
    ----------
    file
        Checkpoint, such as model_step_100000.pt.
    tokenizer
        Sentencepiece model that cut the text it was trained with.
    out
        Model folder to write.
    target_tokenizer
        Sentencepiece model of the translations, if it is another.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.interop.opennmt import import_opennmt

    import_opennmt(file, tokenizer, out, target_tokenizer=target_tokenizer, overwrite=overwrite)
    _told(out)


@importing.command
def marian(folder: Path, /, *, out: Path, overwrite: Overwrite = False) -> None:
    """Write a model folder from a MarianMT model in a folder of Hugging Face's, such as opus-mt.

    With `--length-penalty 0` it translates as there; the power of its penalty is taken over, the
    formula is that of `edgewise translate`. Weights are read as data: a file that holds anything
    else is refused, and none of it is run.

    ```sh
    edgewise import marian opus-mt-en-de --out models/de
    ```

    Parameters
    ----------
    folder
        With config.json, the weights, source.spm, target.spm and vocab.json.
    out
        Model folder to write.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.interop.marian import import_marian

    import_marian(folder, out, overwrite=overwrite)
    _told(out)


def _told(out: Path) -> None:
    size = (out / "model.safetensors").stat().st_size
    say(f"{out}: a model folder, {size / 1e6:,.1f} MB")
    say(f"edgewise translate --model {quote(str(out))} runs it")
