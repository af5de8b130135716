"""edgewise export."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

from cyclopts import App, Parameter

from edgewise.cli.console import console, say

export = App(name="export", help="A model for another engine.", help_format="markdown")
Overwrite = Annotated[bool, Parameter(name=("--overwrite", "--force"), negative=())]


@export.command
def ctranslate2(
    *,
    model: Path,
    out: Path,
    quantization: Literal["int8", "int8_float32", "float16", "float32"] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Write a model for CTranslate2, a fast C++ engine; in float32 with the same scores.

    Its heads share their tables of relative positions (tables = "layer" or "shared"), and it has no
    sinusoids beside them. Its length penalty is another: `--engine ctranslate2` ranks what it finds
    by ours, which can differ from searching with it.

    ```sh
    edgewise export ctranslate2 --model models/de --out exported/de --quantization int8
    edgewise translate --engine ctranslate2 --model exported/de < in.en > out.de
    ```

    Parameters
    ----------
    model
        Model folder.
    out
        Folder to write.
    quantization
        How weights are stored: int8 is a quarter of float32; int8_float32 computes the rest in
        float32 on any machine; float16 is for GPUs.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.interop.ctranslate2 import export

    export(model, out, quantization=quantization, overwrite=overwrite)
    size = (out / "model.bin").stat().st_size
    say(f"{out}: a model for CTranslate2, {quantization}, {size / 1e6:,.1f} MB")
    say(f"edgewise translate --engine ctranslate2 --model {quote(str(out))} runs it")


@export.command
def onnx(*, model: Path, out: Path, overwrite: Overwrite = False) -> None:
    """Write a model for ONNX runtimes: an encoder, and a step of the decoder with its cache.

    Any kind of tables; batches and lengths of any size.

    ```sh
    edgewise export onnx --model models/de --out exported/de-onnx
    edgewise translate --engine onnx --model exported/de-onnx < in.en > out.de
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
    from edgewise.interop.onnx import export

    with console.status("tracing the encoder and the decoder, half a minute"):
        export(model, out, overwrite=overwrite)
    size = sum(path.stat().st_size for path in out.glob("*.onnx*"))
    say(f"{out}: a model for ONNX, {size / 1e6:,.1f} MB")
    say(f"edgewise translate --engine onnx --model {quote(str(out))} runs it")
