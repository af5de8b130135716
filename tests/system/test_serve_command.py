"""`edgewise serve` as a process: start, signals and shutdown."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from local_server import LocalServer
from messages import assert_mentions
from served import SOURCES, Server
from tiny_model import Command, make_model, make_vocabulary
from waiting import PATIENCE, wait_until

from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import Translator
from edgewise.server.run import Ended

USAGE, BAD_DATA = 2, 65
# A sentence takes a second or so, or longer than any test.
STEPS = {"min_length": 400, "max_length": 400}
ENDLESS = {"min_length": 20_000, "max_length": 20_000}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def folder(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "model"
    return make_model(path, vocabulary, generation={"max_length": 9}, languages=("en", "de"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def asked(server: Server, pool: ThreadPoolExecutor, text: str) -> "Future[httpx2.Response]":
    body = {"q": text, "source": "en", "target": "de"}
    return pool.submit(httpx2.post, f"{server.url}/translate", json=body, timeout=60)


def test_without_a_model_it_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = Command(tmp_path)("serve")
    assert result.code == USAGE
    assert_mentions(result.said, "runs/demo/model", "make demo", "edgewise demo", "--model")


def test_what_cannot_be_served_is_told_before_anything_listens(
    folder: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.server.run.Server", None)  # it must not come to that
    in_use = os.strerror(errno.EADDRINUSE)
    command = Command(tmp_path)
    nameless = make_model(tmp_path / "nameless", vocabulary)
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, *facts in (
            (("--model", tmp_path / "none"), USAGE, tmp_path / "none"),
            (("--model", f"x={tmp_path}/none"), USAGE, tmp_path / "none"),
            (("--model", nameless), USAGE, nameless, f"--model en-de={nameless}"),
            (("--model", damaged), BAD_DATA, "damaged", "model.safetensors"),
            (("--model", folder, "--model", folder), USAGE, "'model'", "--model NAME=DIR"),
            (("--model", folder, "--port", port), USAGE, in_use, f"--port {port}", "--port 0"),
            (("--model", folder, "--port", "99999"), USAGE, "--port", 0, 65535, 99999),
            (("--model", folder, "--host", "no.host.invalid"), USAGE, "--host no.host.invalid"),
            (("--model", folder, "--timeout", "0"), USAGE, "--timeout", 3600, "0"),
            (("--model", folder, "--max-waiting", "0"), USAGE, "--max-waiting", 1, 0),
            (("--model", "=x"), USAGE, "--model", "NAME=DIR", "'=x'"),
            (("--model", folder, "--allow-host", "a.b:80"), USAGE, "--allow-host", "'a.b:80'"),
            (("--model", folder, "--allow-host", "http://a"), USAGE, "--allow-host", "'http://a'"),
        ):
            port_given = () if "--port" in arguments else ("--port", "0")
            result = command("serve", *arguments, *port_given)
            assert result.code == code, result.said
            assert_mentions(result.said, *facts)


def test_sigterm_answers_what_was_asked_takes_nothing_more_and_exits_with_0(
    vocabulary: Vocabulary, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    # Without --model the one that `edgewise demo` trains is served.
    demo = tmp_path / "runs" / "demo" / "model"
    make_model(demo, vocabulary, generation=STEPS, languages=("en", "de"))
    with Server(folder=tmp_path) as server:
        assert_mentions("".join(server.said), "en to de", "runs/demo/model")
        assert server.client.get("/languages").json()[0]["targets"] == ["de"]
        answer = asked(server, pool, SOURCES[0])
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 1)
        server.terminate()
        assert answer.result().status_code == 200
        assert server.code() == 0
        with pytest.raises(httpx2.ConnectError):
            server.client.get("/health")


def test_a_second_signal_ends_it_at_once(
    vocabulary: Vocabulary, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    folder = make_model(tmp_path / "m", vocabulary, generation=ENDLESS, languages=("en", "de"))
    with Server("--model", folder) as server:
        answer = asked(server, pool, SOURCES[0])
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 1)
        server.terminate(signal.SIGTERM)
        wait_until(lambda: not accepts_connections(server))
        assert server.process.poll() is None  # it waits for the answer
        server.terminate(signal.SIGINT)
        assert server.code() == 128 + signal.SIGINT
        assert answer.exception() is not None


def accepts_connections(server: Server) -> bool:
    try:
        socket.create_connection((server.host, server.port), timeout=10).close()
    except OSError:
        return False
    return True


def test_its_port_is_taken_and_ctrl_c_ends_it(
    vocabulary: Vocabulary, folder: Path, tmp_path: Path
) -> None:
    nameless = make_model(tmp_path / "m", vocabulary, generation={"max_length": 9})
    with Server("--model", f"fr-gsw={nameless}", "--allow-host", "One.example.") as server:
        assert server.client.get("/health", headers={"host": "one.example:81"}).status_code == 200
        assert server.client.get("/health", headers={"host": "two.example"}).status_code == 421
        # The languages are those of the name that the model is given.
        assert server.client.get("/languages").json() == [
            {"code": "fr", "name": "French", "targets": ["gsw"]},
            {"code": "gsw", "name": "gsw", "targets": []},
        ]
        result = Command(tmp_path)("serve", "--model", folder, "--port", str(server.port))
        assert result.code == USAGE
        assert_mentions(result.said, "--port", server.port, os.strerror(errno.EADDRINUSE))
        assert server.translated("a dog", source="fr", target="gsw")
        server.terminate(signal.SIGINT)
        assert server.code() == 130


# A model that takes as long to load as the test likes.
LOADING = """
import importlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from edgewise.cli.main import main
def load(folders, run):
    print("loading", flush=True)
    time.sleep(600)
importlib.import_module("edgewise.cli.serve").load_translator = load
sys.argv = ["edgewise", "serve", "--port", "0", "--model", "model"]
main()
"""


def test_ctrl_c_ends_it_while_a_model_is_loaded_also_twice() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert said == "edgewise: interrupted\n"


def test_a_model_folder_that_is_overwritten_or_removed_does_not_matter(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with LocalServer({"en-de": Translator.load(copy)}) as server:
        expected = server.translated(SOURCES[:4])
        for path in copy.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
        assert server.translated(SOURCES[:4]) == expected
        shutil.rmtree(copy)
        assert server.translated(SOURCES[:4]) == expected
        assert server.post("/explain", {"q": "a dog"}).status_code == 200


def test_requests_that_were_cut_off_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped:
        def __init__(self, *arguments: object) -> None: ...

        def serve_until_stopped(self) -> Ended:
            return Ended(signal.SIGTERM, 3)

    monkeypatch.setattr("edgewise.server.run.Server", Stopped)
    result = Command(tmp_path)("serve", "--model", folder, "--port", "0", "--timeout", "2")
    assert result.code == 0
    assert_mentions(result.said.splitlines()[-1], 3, "2 s")
