"""`edgewise serve` as a process: how it begins, what it does under load, how it ends."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from served import SOURCES, Server
from tiny_model import Command, make_model, make_vocabulary

from edgewise.data.vocabulary import Vocabulary

USAGE, BAD_DATA = 2, 65
# Each sentence takes so many steps, a second or so: somebody can come, or go, meanwhile.
SLOW = {"min_length": 400, "max_length": 400}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def folder(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "model"
    return make_model(path, vocabulary, generation={"max_length": 9}, languages=("en", "de"))


@pytest.fixture(scope="module")
def slow(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slow") / "model"
    return make_model(path, vocabulary, generation=SLOW, languages=("en", "de"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def until(condition: object, seconds: float = 30.0) -> None:
    """Wait for something that will be soon."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def asked(server: Server, pool: ThreadPoolExecutor, text: str) -> "Future[httpx2.Response]":
    body = {"q": text, "source": "en", "target": "de"}
    return pool.submit(httpx2.post, f"{server.url}/translate", json=body, timeout=60)


def test_without_a_model_it_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = Command(tmp_path)("serve")
    assert result.code == USAGE
    assert "there is no model at runs/demo/model yet: `make demo`" in result.said


def test_without_a_model_the_demo_is_served(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "runs" / "demo" / "model")
    with Server(folder=tmp_path) as server:
        assert server.client.get("/languages").json()[0]["targets"] == ["de"]
        assert any("model: en to de, runs/demo/model" in line for line in server.said)


def test_what_cannot_be_served_is_told_before_anything_listens(
    folder: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.server.run.serve", None)  # it must not come to that
    command = Command(tmp_path)
    nameless = make_model(tmp_path / "nameless", vocabulary)
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, message in (
            (("--model", tmp_path / "none"), USAGE, "there is no model folder"),
            (("--model", f"x={tmp_path}/none"), USAGE, "there is no model folder"),
            (("--model", nameless), USAGE, "give it a name that does, as --model en-de="),
            (("--model", damaged), BAD_DATA, "damaged: model.safetensors"),
            (("--model", folder, "--model", folder), USAGE, "two are 'model'"),
            (("--model", folder, "--port", port), USAGE, "Address already in use (--port 0"),
            (("--model", folder, "--port", "99999"), USAGE, "from 0 to 65535; got 99999"),
            (("--model", folder, "--host", "no.such.host.invalid"), USAGE, "nothing can be served"),
            (("--model", folder, "--timeout", "0"), USAGE, "--timeout must be above 0"),
            (("--model", folder, "--max-waiting", "0"), USAGE, "--max-waiting must be 1 or more"),
            (("--model", "=x"), USAGE, "--model must be DIR or NAME=DIR"),
        ):
            port_given = () if "--port" in arguments else ("--port", "0")
            result = command("serve", *arguments, *port_given)
            assert (result.code, message in result.said) == (code, True), result.said


def test_a_word_that_names_two_languages_names_those_of_the_model(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    nameless = make_model(tmp_path / "m", vocabulary, generation={"max_length": 9})
    with Server("--model", f"fr-gsw={nameless}") as server:
        assert server.client.get("/languages").json() == [
            {"code": "fr", "name": "French", "targets": ["gsw"]},
            {"code": "gsw", "name": "gsw", "targets": []},
        ]


def test_sigterm_answers_what_was_asked_takes_nothing_more_and_exits_with_0(
    slow: Path, pool: ThreadPoolExecutor
) -> None:
    with Server("--model", slow) as server:
        answers = [asked(server, pool, text) for text in SOURCES[:4]]
        until(lambda: server.metric("edgewise_waiting_requests") == 4)
        server.terminate()
        assert all(answer.result().status_code == 200 for answer in answers)
        assert server.code() == 0
        with pytest.raises(httpx2.ConnectError):
            server.client.get("/health")
    assert "all that was asked is answered" in "".join(server.said)


def test_while_it_drains_open_connections_are_told_so(slow: Path, pool: ThreadPoolExecutor) -> None:
    with Server("--model", slow) as server:
        answer = asked(server, pool, SOURCES[0])
        until(lambda: server.metric("edgewise_waiting_requests") == 1)
        # A request whose body is not there yet when the signal comes.
        connection = socket.create_connection((server.host, server.port), timeout=30)
        body = b'{"q": "a dog", "target": "de"}'
        head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        time.sleep(0.2)
        server.terminate()
        time.sleep(0.3)
        connection.sendall(body)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
        connection.close()
        assert b"503 " in received and b"retry-after: 1" in received
        assert b"shutting down" in received
        assert answer.result().status_code == 200
        assert server.code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(
    vocabulary: Vocabulary, tmp_path: Path, pool: ThreadPoolExecutor, number: int
) -> None:
    endless = {"min_length": 20_000, "max_length": 20_000}
    folder = make_model(tmp_path / "m", vocabulary, generation=endless, languages=("en", "de"))
    with Server("--model", folder) as server:
        answer = asked(server, pool, SOURCES[0])
        until(lambda: server.metric("edgewise_waiting_requests") == 1)
        server.terminate(number)
        time.sleep(0.5)
        assert server.process.poll() is None  # it waits for the answer
        server.terminate(number)
        assert server.code() == 128 + number
        assert answer.exception() is not None


def test_ctrl_c_drains_too(folder: Path) -> None:
    with Server("--model", folder) as server:
        assert server.translated("a dog")
        server.terminate(signal.SIGINT)
        assert server.code() == 130


def test_work_is_dropped_when_its_client_is_gone(slow: Path) -> None:
    with Server("--model", slow) as server:
        # Forty sentences are more than one batch, and each batch takes a second or so.
        body = {"q": "\n".join(SOURCES[:40]), "source": "en", "target": "de"}
        for path in ("/translate", "/translate/stream"):
            before = server.metric("edgewise_dropped_total")
            with pytest.raises(httpx2.TimeoutException):
                server.client.post(path, json=body, timeout=httpx2.Timeout(30, read=0.2))
            began = time.monotonic()
            until(lambda: server.metric("edgewise_waiting_requests") == 0)
            assert server.metric("edgewise_waiting_sentences") <= 32
            assert server.metric("edgewise_dropped_total") - before == 40
            # What had been begun is given up, too.
            until(lambda: server.metric("edgewise_waiting_sentences") == 0)
            took = time.monotonic() - began
        before_batches = server.metric("edgewise_batch_seconds_sum")
        assert took < 10 and before_batches < 10
        assert server.translated(SOURCES[0])


def test_an_answer_that_takes_too_long_is_refused(slow: Path) -> None:
    with Server("--model", slow, "--timeout", "0.1") as server:
        response = server.post("/translate", {"q": SOURCES[0]})
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert "no answer within 0.1 s" in response.json()["error"]
        lines = server.post("/translate/stream", {"q": SOURCES[0]}).text.splitlines()
        assert len(lines) == 1 and "nothing came for 0.1 s" in lines[0]
        until(lambda: server.metric("edgewise_waiting_sentences") == 0)


def test_beyond_the_limit_requests_are_refused_at_once(
    slow: Path, pool: ThreadPoolExecutor
) -> None:
    with Server("--model", slow, "--max-waiting", "3") as server:
        answers = [asked(server, pool, text) for text in SOURCES[:3]]
        until(lambda: server.metric("edgewise_waiting_requests") == 3)
        response = server.post("/translate", {"q": SOURCES[3]})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert "waiting already, 3 of at most 3" in response.json()["error"]
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/health").status_code == 200
        assert all(answer.result().status_code == 200 for answer in answers)
        assert server.client.get("/ready").status_code == 200
        assert server.post("/translate", {"q": SOURCES[3]}).status_code == 200


def test_what_takes_longer_than_it_may_is_cut_off_when_it_ends(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    generation = {"min_length": 200, "max_length": 200}
    folder = make_model(tmp_path / "m", vocabulary, generation=generation, languages=("en", "de"))
    with Server("--model", folder, "--timeout", "2", "--batch-tokens", "1") as server:
        body = {"q": "\n".join(SOURCES), "source": "en", "target": "de"}
        with server.client.stream("POST", "/translate/stream", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.terminate()
            with pytest.raises(httpx2.RemoteProtocolError):
                list(lines)
        assert server.code() == 0
    assert "1 requests were cut off, after 2 s" in "".join(server.said)


def test_a_client_that_does_not_read_is_let_go(folder: Path) -> None:
    with Server("--model", folder, "--timeout", "1") as server:
        descriptors = Path(f"/proc/{server.process.pid}/fd")

        def connections() -> int:
            found = 0
            for each in descriptors.iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    found += "socket" in os.readlink(each)
            return found

        before = connections()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        # Answers of megabytes, more than the system keeps for anybody.
        connection.sendall(b"GET /swagger/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 6)
        until(lambda: connections() > before)
        until(lambda: connections() == before)
        connection.close()
        assert server.translated("a dog")


def test_a_port_is_taken_before_the_model_is_read(folder: Path, tmp_path: Path) -> None:
    with Server("--model", folder) as server:
        command = ("serve", "--model", folder, "--port", str(server.port))
        result = Command(tmp_path)(*command)
        assert result.code == USAGE and "Address already in use" in result.said
