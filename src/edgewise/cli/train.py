"""edgewise train."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict, Env

from edgewise.cli.console import say
from edgewise.cli.names import PREFIX, unknown_variables
from edgewise.errors import SettingError
from edgewise.settings import read_toml
from edgewise.training.settings import RunSettings


def train(
    config: Path,
    /,
    *,
    settings: Annotated[RunSettings, Parameter(name="*")],
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a translation model.

    Settings come from flags, then from the environment (`EDGEWISE_MODEL_DROPOUT=0.2`), then from
    the file, then from the defaults, which are the paper's base model. The same command again
    continues a run.

    ```sh
    edgewise train configs/multi30k.toml --corpus corpora/multi30k --out runs/multi30k
    edgewise train configs/multi30k.toml --model.dropout 0.2 --out runs/less-dropout
    edgewise train runs/multi30k/config.toml --training.steps 12000    # go on for longer
    torchrun --standalone --nproc-per-node 2 -m edgewise train configs/multi30k.toml  # two devices
    ```

    Parameters
    ----------
    config
        TOML file with settings.
    overwrite
        Start afresh, even if there is a run in the folder already.
    """
    from edgewise.cli.training_progress import TrainingProgress
    from edgewise.training.loop import train as run
    from edgewise.training.memory import keep_freed_memory
    from edgewise.training.ranks import Ranks

    keep_freed_memory()
    if not Ranks.of_environment().is_first:
        run(settings, overwrite=overwrite)
        return
    say(f"reading {settings.corpus}")
    with TrainingProgress(settings.training.steps) as reporter:
        progress = run(settings, overwrite=overwrite, reporter=reporter)
    reporter.ended(settings, progress)


def settings_sources(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in what no flag set: from the environment, then from the file that was named."""
    known = [argument.name.removeprefix("--") for argument in arguments if argument.keys]
    if unknown := unknown_variables(known):
        raise SettingError(unknown)
    Env(PREFIX, command=False)(app, commands, arguments)
    tokens = next((a.tokens for a in arguments if a.field_info.name == "config"), [])
    if not tokens:
        return
    path = Path(tokens[0].value)
    settings = read_toml(path, "a TOML file with settings (configs/ has some)")
    if "overwrite" in settings:
        raise SettingError(f"{path} sets overwrite, which can be given as --overwrite only")
    if path.name == "config.toml" and (path.parent / "run.json").is_file():
        settings["out"] = str(path.parent)  # a run that was copied or moved goes on where it is
    source: Any = Dict(settings, source=str(path), use_commands_as_keys=False)
    source(app, commands, arguments)
