"""What a cell was computed on."""

import os
import platform
from pathlib import Path

import torch


def hardware() -> str:
    """The GPUs, or the CPU and its cores."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{cpu()}, {os.cpu_count()} cores"


def cpu() -> str:
    """Its name, as the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
