"""Shared by the tests of the server: one in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from local_server import Asking
from tiny_model import PROGRAM

from edgewise.data.grammar import pairs

SOURCES = [source for source, _ in pairs(64, 7)]


class Server(Asking):
    """`edgewise serve` at a port of its own; when the block ends, so does it.

    ulimit: options of the shell's command that limit the process, such as `-n 256`.
    """

    def __init__(
        self,
        *arguments: str | Path,
        threads: int = 1,
        folder: Path | None = None,
        ulimit: str | None = None,
    ) -> None:
        limited = () if ulimit is None else ("sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh")
        command = (sys.executable, "-c", PROGRAM, "serve", "--port", "0", *map(str, arguments))
        self.process = subprocess.Popen(
            [*limited, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            text=True,
            cwd=folder,
        )
        self.said: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"http://(127\.0\.0\.1):(\d+) has the page", line):
                self.host, self.port = found[1], int(found[2])
                self._listening.set()
        self._listening.set()

    def __enter__(self) -> "Server":
        if not self._listening.wait(120) or not hasattr(self, "port"):
            self.process.kill()
            raise AssertionError("".join(self.said))
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.terminate()
        try:  # a killed process does not write its coverage
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        assert "Traceback" not in "".join(self.said), "".join(self.said)

    def terminate(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        return self.process.wait(60)

    def resident(self) -> int:
        """Bytes of memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
