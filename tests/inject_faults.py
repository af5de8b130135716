"""Inject the faults of faults.toml, one at a time, and list the test that catches each.

A fault changes a few lines in a copy of the project. The tests that cover these lines run until the
first one fails; which tests cover them is taken from the data of `make coverage`.

    make coverage
    .venv/bin/python tests/inject_faults.py     # all faults; exit code 1 if one is not caught
    .venv/bin/python tests/inject_faults.py --sample 6 --seed 3
    .venv/bin/python tests/inject_faults.py --only beam --json caught.json
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData
from parts import PARTS

ROOT = Path(__file__).parents[1]
COVERAGE = ROOT / "build" / "coverage" / "data"
# A fault may make a test hang; then pytest prints the stack and exits.
HANGS = ("-o", "faulthandler_timeout=180", "-o", "faulthandler_exit_on_timeout=true")
LIMIT_SECONDS = 3600
CAUGHT = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A text that occurs once in a file, and what replaces it."""

    name: str
    file: str
    find: str
    replace: str

    def applied(self, text: str) -> str:
        if text.count(self.find) != 1:
            sys.exit(
                f"fault {self.name!r}: its `find` must occur once in {self.file}; it occurs "
                f"{text.count(self.find)} times (adapt tests/faults.toml to the code)"
            )
        return text.replace(self.find, self.replace)

    def lines(self, text: str) -> range:
        """The numbers of the lines that are replaced."""
        first = text[: text.index(self.find)].count("\n") + 1
        return range(first, first + self.find.rstrip("\n").count("\n") + 1)


@dataclass(frozen=True)
class Outcome:
    """The test that caught a fault, or None, among how many that cover it, in what time."""

    caught_by: str | None
    covering: int
    seconds: float


def read_faults(only: str | None = None) -> list[Fault]:
    content = tomllib.loads((ROOT / "tests" / "faults.toml").read_text(encoding="utf-8"))
    faults = [Fault(**entry) for entry in content["fault"]]
    return [fault for fault in faults if only is None or only in fault.name]


def tests_of_context(context: str) -> str:
    """The test of a coverage context, or the file of its tests.

    In the process of a test the context is the test. In another process it is what pytest put into
    PYTEST_CURRENT_TEST, with the phase at its end; a process that a fixture started may serve
    every test of the file.
    """
    context = re.split(r" \((?:call|setup|teardown)\)\|", context)[-1]
    test, phase = re.fullmatch(r"(.*?)(?: \((call|setup|teardown)\))?", context).groups()
    return test if phase in (None, "call") else test.partition("::")[0]


def covering_tests(fault: Fault, data: CoverageData, source: Path) -> list[str]:
    """The tests that run the lines of a fault, those of one process first."""
    contexts = data.contexts_by_lineno(str(source / fault.file))
    lines = fault.lines((ROOT / fault.file).read_text(encoding="utf-8"))
    found = {context for line in lines for context in contexts.get(line, ()) if context}
    if not found:  # lines that run at import time belong to no test
        found = {context for each in contexts.values() for context in each if context}
    tests = {tests_of_context(context) for context in found}
    whole_files = {test for test in tests if "::" not in test}
    kept = {test for test in tests if test.partition("::")[0] not in whole_files} | whole_files
    order = {"unit": 0, "integration": 1, "system": 2}
    return sorted(kept, key=lambda test: (order[test.split("/")[1]], test))


def copy_project(target: Path) -> None:
    """Copy what the tests read; the copy's package is imported through PYTHONPATH."""
    ignored = shutil.ignore_patterns(".*", "build", "runs", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, target, ignore=ignored)


def run_until_failure(project: Path, tests: Iterable[str], folder: Path) -> str | None:
    """Run tests in the copy, with the same hooks as `make test`; return the first that fails."""
    selected = [test for test in tests if (project / test.partition("::")[0]).exists()]
    (folder / "tests").write_text("\n".join(selected))
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    for options in PARTS:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += [*HANGS, *options]
        with (folder / "log").open("w+") as log:
            process = subprocess.Popen(
                [*command, f"@{folder / 'tests'}"],
                cwd=project,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                log.seek(0)
                sys.exit(f"no end within {LIMIT_SECONDS} s; the last output:\n{log.read()[-2000:]}")
            log.seek(0)
            printed = log.read()
        if "Timeout (" in printed:
            return "a test that hangs"
        if code in (1, 2):  # 2: a test file cannot be imported
            (test, *_) = CAUGHT.findall(printed)
            return str(test)
        if code not in (0, 5):  # 5: no test in this part
            sys.exit(f"pytest exited with {code}:\n{printed}")
    return None


def inject(fault: Fault, data: CoverageData, source: Path, project: Path, folder: Path) -> Outcome:
    path = project / fault.file
    before = path.read_text(encoding="utf-8")
    tests = covering_tests(fault, data, source)
    began = time.monotonic()
    path.write_text(fault.applied(before), encoding="utf-8")
    try:
        caught_by = run_until_failure(project, tests, folder) if tests else None
    finally:
        path.write_text(before, encoding="utf-8")
    if caught_by and "::" in caught_by and run_until_failure(project, [caught_by], folder):
        sys.exit(f"{caught_by} fails without the fault, too")
    return Outcome(caught_by, len(tests), time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coverage", type=Path, default=COVERAGE, help="data of `make coverage`")
    parser.add_argument(
        "--source", type=Path, default=ROOT, help="project in which coverage was measured"
    )
    parser.add_argument("--only", help="faults with this in their names")
    parser.add_argument("--sample", type=int, help="inject this many faults, chosen at random")
    parser.add_argument("--seed", type=int, help="seed of the sample (default: random; printed)")
    parser.add_argument("--json", type=Path, help="file to write the outcome of each fault to")
    arguments = parser.parse_args()
    faults = read_faults(arguments.only)
    if not faults:
        parser.error(f"no fault has {arguments.only!r} in its name")
    for fault in faults:
        fault.applied((ROOT / fault.file).read_text(encoding="utf-8"))
    if not arguments.coverage.exists():
        sys.exit(f"there is no {arguments.coverage}: run `make coverage` first")
    if arguments.sample is not None:
        seed = random.randrange(1000) if arguments.seed is None else arguments.seed
        print(f"--sample {arguments.sample} --seed {seed}")
        faults = random.Random(seed).sample(faults, min(arguments.sample, len(faults)))
    data = CoverageData(str(arguments.coverage))
    data.read()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        project = folder / "project"
        copy_project(project)
        for fault in faults:
            outcome = inject(fault, data, arguments.source.resolve(), project, folder)
            outcomes[fault.name] = outcome
            print(
                f"{fault.file}: {fault.name}: {outcome.caught_by or 'NOT CAUGHT'} "
                f"({outcome.covering} covering, {outcome.seconds:.0f} s)",
                flush=True,
            )
            if arguments.json:
                content = {name: vars(each) for name, each in outcomes.items()}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    caught = sum(outcome.caught_by is not None for outcome in outcomes.values())
    print(f"{caught} of {len(outcomes)} faults caught")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
