"""edgewise average."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from edgewise.cli.console import say
from edgewise.errors import SettingError


def average(
    run: Path,
    /,
    *,
    last: int,
    out: Path,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Average the weights of a run's last checkpoints into a model folder.

    ```sh
    edgewise average runs/paper-big --last 20 --out models/paper-big
    ```

    Parameters
    ----------
    run
        Folder of a training run.
    last
        How many checkpoints, the newest ones.
    out
        Model folder to write.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.checkpoint.average import average as mean

    if last < 1:
        raise SettingError(f"--last must be 1 or more; got {last}")
    steps = mean(run, last, out, overwrite=overwrite)
    say(f"{out}: the mean of the weights after {', '.join(map(str, steps))} updates")
