"""What results depend on beside their settings: hardware, commit, versions."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("edgewise", "torch", "numpy", "sentencepiece", "safetensors", "sacrebleu")


def provenance() -> dict[str, Any]:
    """Return the time, the commit, and the versions of the packages that results depend on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def hardware() -> str:
    """Return the GPUs, or the CPU and its number of cores."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{cpu()}, {os.cpu_count()} cores"


def cpu() -> str:
    """Return the name of the CPU."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Return the commit of this code: a checkout's, or the one that pip installed from git.

    A checkout with changes is marked by a +. None: neither is known.
    """
    package = Path(__file__).parent
    git = ["git", "-C", str(package)]
    try:
        tracked = subprocess.run([*git, "ls-files", "errors.py"], capture_output=True, check=True)
        if tracked.stdout:
            head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=True)
            status = [*git, "status", "--porcelain", "--untracked-files=no", "."]
            changed = subprocess.run(status, capture_output=True, check=True).stdout
            return head.stdout.decode().strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    try:
        installed = distribution("edgewise").read_text("direct_url.json")
        found: str | None = json.loads(installed or "{}").get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    return found
