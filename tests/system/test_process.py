"""The process of a command: signals at any time, streams that fail, too little memory.

`edgewise.cli.process` imports little: most programs here start in a tenth of a second.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from messages import assert_mentions, error_lines
from tiny_model import Command, commands, make_model, make_vocabulary, streams

from edgewise.cli import process
from edgewise.cli.console import say, stage_progress
from edgewise.cli.process import lack_of_memory
from edgewise.errors import DataError, EdgewiseError

# `work` is the command; `kill()` sends it a signal.
PROGRAM = """
import os, signal, sys, time
from edgewise.cli.process import Terminated, execute, leave
NUMBER = signal.{signal}
kill = lambda: os.kill(os.getpid(), NUMBER)
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
def wait():
    time.sleep(30)
    return 1
{work}
leave(execute(work))
"""
ENDS = {"SIGINT": (130, "edgewise: interrupted\n"), "SIGTERM": (143, "edgewise: terminated\n")}
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def run(work: str, signal: str = "SIGINT", **options: Any) -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.format(work=work, signal=signal)
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(
        [sys.executable, "-c", program], text=True, check=False, timeout=60, **given
    )


def assert_ended_by(signal: str, done: "subprocess.CompletedProcess[str]") -> None:
    assert (done.returncode, done.stderr) == ENDS[signal]


# Signals.


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_ends_a_command_with_one_line(name: str) -> None:
    assert_ended_by(name, run("def work():\n    kill()\n    return wait()", name))


@pytest.mark.parametrize("name", ENDS)
def test_more_signals_do_not_disturb_the_removal_of_temporary_files(
    name: str, tmp_path: Path
) -> None:
    for i in range(3):
        (tmp_path / f"{i}").touch()
    work = f"""
def work():
    try:
        kill()
        wait()
    finally:
        for i in range(3):
            kill()
            os.unlink("{tmp_path}/" + str(i))
"""
    assert_ended_by(name, run(work, name))
    assert not any(tmp_path.iterdir())


def test_a_signal_during_an_import_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        f"import __main__\n__main__.kill()\nopen('{tmp_path}/imported', 'w').close()\n"
    )
    work = f"sys.path.insert(0, '{tmp_path}')\ndef work():\n    import slow\n    return wait()"
    assert_ended_by("SIGINT", run(work))
    assert (tmp_path / "imported").exists()


def test_a_second_signal_during_an_import_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import __main__\nfor _ in range(2):\n    __main__.kill()\n__main__.wait()\n"
    )
    work = f"sys.path.insert(0, '{tmp_path}')\ndef work():\n    import slow"
    assert_ended_by("SIGINT", run(work))


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_where_python_ignores_exceptions_is_raised_again(name: str) -> None:
    work = """
class Kills:
    def __del__(self):
        kill()
        time.sleep(0)
def work():
    Kills()
    return wait()
"""
    assert_ended_by(name, run(work, name))


@pytest.mark.parametrize("name", ENDS)
def test_an_error_that_a_signal_was_turned_into_is_the_signal(name: str) -> None:
    work = """
def work():
    try:
        kill()
        wait()
    except (KeyboardInterrupt, Terminated):
        raise ValueError("could not determine the shape")
"""
    assert_ended_by(name, run(work, name))


def test_an_error_of_ours_that_a_signal_was_turned_into_is_the_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*arguments: object, **options: object) -> None:
        raise DataError("the weights are damaged")

    monkeypatch.setattr(commands, "app", app)
    monkeypatch.setattr(process._signals, "raised", signal.SIGTERM)
    assert commands.run([]) == 143
    assert capsys.readouterr().err == "edgewise: terminated\n"


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_that_is_ignored_stays_ignored(name: str) -> None:
    work = "signal.signal(NUMBER, signal.SIG_IGN)\ndef work():\n    kill()\n    return 7"
    assert run(work, name).returncode == 7


@pytest.mark.parametrize("name", ENDS)
def test_signals_change_nothing_when_python_ends(name: str) -> None:
    work = "import atexit\natexit.register(kill)\ndef work():\n    return 7"
    done = run(work, name)
    assert (done.returncode, done.stderr) == (7, "")


def test_an_interruption_of_exec_ends_with_130_too() -> None:
    # Python would kill itself at its end, by the signal.
    assert_ended_by("SIGINT", run("def work():\n    exec('kill()\\nwait()')"))


def interrupted_at_import(module: str, name: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that gets a signal when it imports a module."""
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == '{module}':\n"
        f"            os.kill(os.getpid(), signal.{name})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['edgewise', 'data', 'list']\n"
        "from edgewise.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_while_libraries_are_imported_ends_the_command_with_one_line(name: str) -> None:
    assert_ended_by(name, interrupted_at_import("numpy", name))  # which every command imports


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_before_it_can_be_handled_ends_the_process_in_silence(name: str) -> None:
    done = interrupted_at_import("edgewise.cli.process", name)
    assert (done.returncode, done.stderr) == (-signal.Signals[name], "")


def test_the_pool_of_workers_ends_in_silence_when_the_terminal_interrupts_all(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("a b c\n" * 9000)
    # Ctrl-C as soon as the first worker is there: it is for the whole group of processes.
    program = f"""
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor
signal.signal(signal.SIGINT, signal.default_int_handler)
submit = ProcessPoolExecutor.submit
def interrupting(self, *arguments):
    future = submit(self, *arguments)
    os.killpg(0, signal.SIGINT)
    return future
ProcessPoolExecutor.submit = interrupting
sys.argv = ["edgewise", "prepare", "--source", "{tmp_path}/a", "--target", "{tmp_path}/b",
    "--vocab-size", "265", "--workers", "2", "--out", "{tmp_path}/corpus"]
from edgewise.cli.main import main
if __name__ == "__main__":
    main()
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 130
    assert error_lines(done.stderr) == ["edgewise: interrupted"]
    assert "Traceback" not in done.stderr and "leaked" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "program.py"]


# Streams.


@needs_full
def test_messages_that_cannot_be_written_change_no_exit_code() -> None:
    work = "def work():\n    os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n"
    work += (
        "    try:\n        print('lost', file=sys.stderr)\n    except OSError:\n        return 7"
    )
    assert run(work).returncode == 7


@needs_full
def test_output_that_cannot_be_written_is_told_once() -> None:
    work = "def work():\n    print('lost')\n    sys.stdout.flush()"
    with open("/dev/full", "w") as full:
        done = run(work, stdout=full)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert_mentions(said, "No space left on device")


def test_a_file_never_gets_the_number_of_a_closed_stream() -> None:
    work = "def work():\n    return open(os.devnull).fileno()"
    done = run(work, preexec_fn=lambda: [os.close(number) for number in range(3)])
    assert done.returncode >= 3


class Failing:
    """Standard error of a terminal that is gone, or of a full disk."""

    encoding = "utf-8"

    def __init__(self, error: Exception, *, terminal: bool) -> None:
        self.error, self.terminal = error, terminal

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error

    def isatty(self) -> bool:
        return self.terminal

    def fileno(self) -> int:
        return 2


FAILING = {
    "a full disk": Failing(OSError(28, "No space left on device"), terminal=False),
    "a terminal that is gone": Failing(OSError(5, "Input/output error"), terminal=True),
    "a reader that is gone": Failing(BrokenPipeError(32, "Broken pipe"), terminal=False),
    "a closed file": Failing(ValueError("I/O operation on closed file"), terminal=False),
    "nothing": None,
}


@pytest.mark.parametrize("kind", FAILING)
def test_messages_and_bars_that_cannot_be_written_are_no_error(kind: str) -> None:
    with streams(stderr=FAILING[kind]):
        say("a message")
        with stage_progress() as progress:
            progress("working", 1, 2)
            say("another")
        assert commands.run(["train", "no.toml"]) == 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("process") / "model", make_vocabulary())


@pytest.mark.parametrize("kind", FAILING)
def test_no_line_of_the_output_is_lost_with_the_messages(
    kind: str, model: Path, tmp_path: Path
) -> None:
    text = b"a man\nnot \xff text\na dog\n"
    expected = Command(tmp_path)("translate", "--model", model, "--beam", "1", stdin=text)
    assert expected.code == 65
    with (
        (tmp_path / "in-of-the-command").open() as source,
        (tmp_path / "out").open("w") as out,
        streams(stdin=source, stdout=out, stderr=FAILING[kind]),
    ):
        assert commands.run(["translate", "--model", str(model), "--beam", "1"]) == 65
    assert (tmp_path / "out").read_bytes() == expected.out


def test_scores_go_to_their_file_while_a_terminal_shows_the_progress(
    model: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("a man\na dog\n")
    arguments = ["score", "--model", str(model)]
    arguments += ["--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]
    expected = Command(tmp_path)(*arguments)
    leader, follower = os.openpty()
    with (
        (tmp_path / "out").open("w") as out,
        open(follower, "w") as terminal,
        streams(stdout=out, stderr=terminal),
    ):
        assert commands.run(arguments) == 0
    os.close(leader)
    assert expected.out.count(b"\n") == 2
    assert (tmp_path / "out").read_bytes() == expected.out


def test_a_name_with_brackets_is_no_markup_of_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    leader, follower = os.openpty()
    with (
        open(follower, "w") as terminal,
        streams(stderr=terminal),
        stage_progress() as progress,
    ):
        progress("encoding a[/b].en", 1, 2)
    shown = b""
    while b"1/2" not in shown:
        shown += os.read(leader, 1 << 16)
    assert b"encoding a[/b].en" in shown
    os.close(leader)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_output_is_utf8_whatever_the_locale_and_names_of_files_are_as_they_are(
    encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = b"bild\xc3\xa9r-\xff"
    monkeypatch.setattr(commands, "app", lambda *a, **b: print(os.fsdecode(name)))
    with (tmp_path / "out").open("w", encoding=encoding) as out, streams(stdout=out):
        assert commands.run([]) == 0
    assert (tmp_path / "out").read_bytes() == name + b"\n"


@pytest.mark.parametrize("arguments", [["data", "list"], ["--help"], ["--version"]])
def test_a_closed_output_exits_with_74(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with streams(stdout=None):
        assert commands.run(arguments) == 74
    assert_mentions(capsys.readouterr().err, "stdout is closed")


@pytest.mark.parametrize("kind", ["socket", "terminal"])
def test_lines_may_come_from_a_socket_or_a_terminal(
    kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["translate", "--model", str(model), "--beam", "1", "--max-length", "4"]
    expected = Command(tmp_path)(*options, stdin="a man\na dog\n").out
    if kind == "socket":
        ours, theirs = socket.socketpair()
        ours.sendall(b"a man\na dog\n")
        ours.close()
        number = theirs.detach()
    else:
        leader, number = os.openpty()
        os.write(leader, b"a man\na dog\n\x04")  # Ctrl-D
    with (
        open(number) as source,
        (tmp_path / "out").open("w") as out,
        streams(stdin=source, stdout=out),
    ):
        assert commands.run(options) == 0
    assert (tmp_path / "out").read_bytes() == expected
    if kind == "terminal":
        os.close(leader)
        assert_mentions(capsys.readouterr().err, "Ctrl-D")


@pytest.mark.parametrize("arguments", [["train", "a.toml"], ["data", "list"]])
def test_a_working_directory_that_was_removed_exits_with_74(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert commands.run(arguments) == 74
    captured = capsys.readouterr()
    assert captured.out == ""
    (said,) = captured.err.splitlines()
    assert_mentions(said, "working directory")


# Memory.


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        OSError("libgomp.so.1: failed to map segment from shared object"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: "
                     "can't allocate memory: you tried to allocate 4 bytes."),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)  # fmt: skip
def test_an_error_for_lack_of_memory_exits_with_1_and_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*arguments: object, **options: object) -> None:
        try:
            raise error
        except Exception as cause:  # as numpy does
            raise ImportError("numpy cannot be imported\n\nfor many reasons") from cause

    monkeypatch.setattr(commands, "app", app)
    assert commands.run([]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert_mentions(said, "edgewise: out of memory")


def test_other_errors_are_not_for_lack_of_memory() -> None:
    for error in (
        BlockingIOError(11, "Resource temporarily unavailable"),  # a pipe that is full
        OSError(28, "No space left on device"),
        ImportError("No module named 'x'"),
        EdgewiseError("out of range"),
    ):
        assert lack_of_memory(error) == ""


def limited(kibibytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (kibibytes << 10, kibibytes << 10))


@pytest.mark.parametrize("kibibytes", [100_000, 400_000])
@pytest.mark.parametrize("command", ["translate", "train", "prepare"])
def test_too_little_address_space_is_told_in_one_line(kibibytes: int, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", command],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited(kibibytes),
    )
    assert (done.returncode, done.stdout) == (1, "")
    (said,) = done.stderr.splitlines()
    assert_mentions(said, "out of memory", kibibytes, "KiB", "ulimit -v")


@pytest.mark.long
@pytest.mark.parametrize("kibibytes", range(40_000, 1_000_000, 40_000))
@pytest.mark.parametrize("command", ["--help", "translate", "prepare"])
def test_any_limit_of_the_address_space_ends_with_0_or_1_and_no_traceback(
    kibibytes: int, command: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a man sees a dog\n" * 300)
    text, out = str(tmp_path / "a"), str(tmp_path / "corpus")
    options = {
        "--help": (),
        "translate": ("--model", str(model), "--threads", "1"),
        "prepare": ("--source", text, "--target", text, "--vocab-size", "275", "--out", out),
    }
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", command, *options[command]],
        capture_output=True,
        text=True,
        check=False,
        input="a man\n",
        preexec_fn=limited(kibibytes),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert len(error_lines(done.stderr)) == done.returncode, done.stderr


# Defects.


def test_an_unexpected_error_is_one_line_that_says_where() -> None:
    work = "def work():\n    from edgewise.cli.process import lack_of_memory\n"
    done = run(work + "    lack_of_memory.no")
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert_mentions(said, "edgewise: internal error", "AttributeError", "PYTHONDEVMODE=1")
    done = run(work + "    lack_of_memory.no", env=os.environ | {"PYTHONDEVMODE": "1"})
    assert done.returncode == 1
    assert "Traceback" in done.stderr
