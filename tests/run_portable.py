"""Run the unit and integration tests under other instruction sets, threads and environments.

Results differ in their last digits between instruction sets. "elsewhere" is another locale and time
zone, and no home directory.

    .venv/bin/python tests/run_portable.py                 # all settings
    .venv/bin/python tests/run_portable.py SSE4.1 elsewhere
    .venv/bin/python tests/run_portable.py --list
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from parts import PARTS

ROOT = Path(__file__).parents[1]
NO_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"  # NumPy's names
SETTINGS: dict[str, dict[str, str]] = {
    # Instructions of PyTorch's own loops, of oneDNN, of MKL and of NumPy; then threads.
    "AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": NO_AVX512,
        "OMP_NUM_THREADS": "2",
    },
    "SSE4.1": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": f"{NO_AVX512} X86_V3",
        "OMP_NUM_THREADS": "1",
    },
    "four threads": {"OMP_NUM_THREADS": "4", "MKL_CBWR": "COMPATIBLE"},
    "elsewhere": {
        "LC_ALL": "C",
        "TZ": "Asia/Kathmandu",
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
    },
}


def run(settings: dict[str, str], workers: int) -> int:
    """Run both parts of the tests; return 0 if both pass."""
    environment = {name: value for name, value in os.environ.items() if name != "LANG"}
    environment["OMP_WAIT_POLICY"] = "passive"  # there are more threads than cores
    codes = []
    for options in PARTS:
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile"),
            *("--no-loadscope-reorder", *options, "tests/unit", "tests/integration"),
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment | settings, check=False)
        codes.append(done.returncode)
    return int(any(codes))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="default: all")
    parser.add_argument("--list", action="store_true", help="list the settings and exit")
    parser.add_argument("--workers", type=int, default=2, help="test files at a time (default: 2)")
    arguments = parser.parse_args()
    if unknown := set(arguments.settings) - set(SETTINGS):
        parser.error(f"unknown settings {sorted(unknown)}; there are {list(SETTINGS)}")
    chosen = arguments.settings or list(SETTINGS)
    if arguments.list:
        for name, settings in SETTINGS.items():
            print(f"{name}: {' '.join(f'{key}={value!r}' for key, value in settings.items())}")
        return 0
    codes: dict[str, int] = {}
    for name in chosen:
        print(f"== {name}: {SETTINGS[name]}", flush=True)
        began = time.monotonic()
        codes[name] = run(SETTINGS[name], arguments.workers)
        print(f"== {name}: exit {codes[name]} after {time.monotonic() - began:.0f} s", flush=True)
    for name, code in codes.items():
        print(f"{'passed' if code == 0 else 'FAILED'}: {name}")
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
