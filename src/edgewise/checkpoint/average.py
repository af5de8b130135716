"""The mean of the last checkpoints' weights, which the paper's big models are evaluated with."""

from pathlib import Path

from edgewise.checkpoint.checkpoints import STEPS
from edgewise.checkpoint.model_folder import (
    KIND,
    model_data,
    model_languages,
    read_model,
    write_model,
)
from edgewise.errors import DataError, SettingError
from edgewise.storage import new_folder, require_free_folder, resolved


def average(run: Path, last: int, out: Path, *, overwrite: bool = False) -> list[int]:
    """Write the mean of a run's last models as a model folder; the steps that went into it."""
    if resolved(out).is_relative_to(resolved(run)):
        raise SettingError(
            f"--out must be outside the training run {run}; got {out}: choose another --out"
        )
    require_free_folder(out, KIND, overwrite=overwrite)
    paths = sorted((run / "checkpoints").glob(f"{STEPS}/model"))
    if not paths:
        raise SettingError(f"{run} has no checkpoints: it must be the folder of a training run")
    if len(paths) < last:
        raise SettingError(
            f"--last {last} is more than the {len(paths)} checkpoints in {run} "
            "(training.keep says how many are kept)"
        )
    paths = paths[-last:]
    total, settings, vocabulary = read_model(paths[0])
    # Double precision, so that the order of the sum does not show.
    mean = {name: tensor.double() / last for name, tensor in total.items()}
    for path in paths[1:]:
        tensors, of_settings, of_vocabulary = read_model(path)
        if of_settings != settings or of_vocabulary.digest != vocabulary.digest:
            raise DataError(f"{path} is of another model than {paths[0]}")
        for name, tensor in tensors.items():
            mean[name] += tensor.double() / last
    steps = [int(path.parent.name[5:]) for path in paths]
    result = {name: tensor.to(total[name].dtype) for name, tensor in mean.items()}
    about = {"mean of the updates": ", ".join(map(str, steps))}
    with new_folder(out) as new:
        write_model(
            *(new, result, settings, vocabulary, about),
            languages=model_languages(paths[0]),
            data=model_data(paths[0]),
        )
    return steps
