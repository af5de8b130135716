"""Shared by the benchmarks: alternating rounds, peak memory in fresh processes, the machine."""

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from edgewise.provenance import cpu

RESULTS = Path(__file__).parent / "results"


def alternate(
    contestants: dict[str, Callable[[], object]], seconds: float, least: int = 5
) -> dict[str, float]:
    """Median seconds of each contestant, run in turn again and again for about `seconds`.

    Neighbours on the machine slow all of them alike, so that ratios hold where times do not.
    """
    for run in contestants.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    start = time.perf_counter()
    rounds = 0
    while rounds < least or (time.perf_counter() - start < seconds and rounds < 300):
        for name, run in contestants.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
        rounds += 1
    return {name: statistics.median(values) for name, values in times.items()}


class Contestant:
    """A script in a process of its own, which does a piece of work for each line that it reads."""

    def __init__(self, script: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._answer() != ["ready"]:
            command = shlex.join([str(script), *arguments])
            raise SystemExit(f"it did not start: python {command} tells why")

    def step(self, work: str = "") -> float:
        """Seconds of a piece of work."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{work}\n")
        self.process.stdin.flush()
        return float(self._answer()[0])

    def end(self) -> tuple[int, int]:
        """Peak memory, and memory before the model was there."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        peak, before = map(int, self._answer())
        self.process.wait()
        return peak, before

    def _answer(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()


def peak_in_fresh_process(arguments: list[str]) -> int:
    """Bytes that a script, called with these arguments, prints as its last line."""
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, env=os.environ
    )
    return int(result.stdout.split()[-1])


def machine(threads: int) -> dict[str, str | int]:
    """What a figure depends on besides the code."""
    return {
        "date": date.today().isoformat(),
        "cpu": cpu(),
        "cores": os.cpu_count() or 0,
        "threads": threads,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": f"python {' '.join(sys.argv)}",
    }


def save(name: str, figures: dict[str, object], text: str) -> Path:
    """Write a dated result: the table as printed, and the same as JSON."""
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{date.today().isoformat()}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    return stem.with_suffix(".md")
