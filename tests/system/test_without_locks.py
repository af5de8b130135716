"""A system without file locks, such as Windows, translates; it only cannot write files."""

import subprocess
import sys
from pathlib import Path

from messages import assert_mentions
from tiny_model import make_model, make_vocabulary

PROGRAM = """
import sys
import signal
sys.modules["fcntl"] = sys.modules["resource"] = None
del signal.SIGALRM, signal.setitimer, signal.pthread_sigmask
from edgewise.cli import process
process.require_memory(["translate"])
assert "out of memory" in process.lack_of_memory(MemoryError())
process.execute(lambda: 0)
from edgewise.cli.main import run
model, text = sys.argv[1:]
assert run(["translate", "--model", model]) == 0
sys.exit(run(["data", "generate", "--pairs", "5", "--out", text]))
"""


def test_translating_needs_no_locks_and_writing_says_so(tmp_path: Path) -> None:
    make_model(tmp_path / "model", make_vocabulary())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "model", tmp_path / "text"],
        **{"input": "A child .\n", "capture_output": True, "text": True, "check": False},
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert_mentions(done.stderr, "locks", "Linux", "macOS")
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
