"""Where a model runs."""

import torch

from edgewise.errors import SettingError


def device_named(name: str, setting: str = "device") -> torch.device:
    """The device of a name; auto: a GPU if there is one. SettingError if it is not there."""
    wanted = name
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise SettingError(
            f"{setting} must be auto, cpu, or a GPU of this machine such as cuda:0; got "
            f"{name!r}: {str(error).splitlines()[0].split('. ')[0]}"
        ) from None
    return device
