"""The server under its limits: what waits too long, is too much or too slow, and how it drains."""

import errno
import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx2
import pytest
from local_server import HeldEngine, LocalServer, received
from messages import assert_mentions
from waiting import PATIENCE, wait_until

from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding.device import OutOfMemoryError
from edgewise.errors import DataError, EdgewiseError
from edgewise.server.limits import Limits
from edgewise.server.models import Served

SOURCES = [source for source, _ in pairs(64, 7)]
LONG = " ".join(SOURCES[:20]).replace(".", ",")  # one sentence
HEADERS = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(500, 1) for line in pair], 400)


@pytest.fixture
def engine(vocabulary: Vocabulary) -> HeldEngine:
    return HeldEngine(vocabulary)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def ask(server: LocalServer, pool: ThreadPoolExecutor, text: str) -> "Future[httpx2.Response]":
    body = {"q": text, "source": "en", "target": "de"}
    return pool.submit(httpx2.post, f"{server.url}/translate", json=body, timeout=PATIENCE)


def test_accepted_requests_are_answered_and_no_more_are_taken_when_it_stops(
    engine: HeldEngine, pool: ThreadPoolExecutor
) -> None:
    with LocalServer({"en-de": engine}) as server:
        answers = [ask(server, pool, text) for text in SOURCES[:4]]
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 4)
        wait_until(lambda: server.open_requests == 4)  # the request for the metric has ended
        # A request whose body is not there yet when the server is stopped.
        body = b'{"q": "a dog", "target": "de"}'
        late = server.open(HEADERS + b"Content-Length: %d\r\n\r\n" % len(body))
        wait_until(lambda: server.open_requests == 5)
        server.stop()
        late.sendall(body)
        refused = received(late)
        assert b"HTTP/1.1 503 " in refused and b"retry-after: 1" in refused
        engine.released.set()
        assert [answer.result().json()["translatedText"] for answer in answers] == SOURCES[:4]
        assert server.join().cut_off == 0
        with pytest.raises(httpx2.ConnectError):
            server.client.get("/health")


def test_a_stream_that_goes_on_for_too_long_is_cut_off_when_it_stops(
    vocabulary: Vocabulary,
) -> None:
    engine = HeldEngine(vocabulary, seconds=0.1)
    engine.batch_tokens = 1  # one sentence at a time: six seconds, of which one is granted
    with LocalServer({"en-de": engine}, Limits(seconds=0.95)) as server:
        body = {"q": "\n".join(SOURCES), "source": "en", "target": "de"}
        with server.client.stream("POST", "/translate/stream", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.stop()
            with pytest.raises(httpx2.RemoteProtocolError):
                list(lines)
        ended = server.join()
    assert ended.cut_off == 1 and ended.signal == signal.SIGTERM


@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_work_is_dropped_when_its_client_is_gone(path: str, engine: HeldEngine) -> None:
    with LocalServer({"en-de": engine}) as server:
        body = json.dumps({"q": "\n".join(SOURCES[:40]), "target": "de"}).encode()
        head = HEADERS.replace(b"/translate", path.encode())
        client = server.open(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: engine.batches)
        client.close()
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 0)
        assert server.metric("edgewise_dropped_total") == 40
        # The batch that had begun is given up, although the engine was never released.
        wait_until(lambda: server.metric("edgewise_waiting_sentences") == 0)
        assert len(engine.batches) == 1 and engine.batches[0] < 40
        engine.released.set()
        assert server.translated(SOURCES[0]) == SOURCES[0]


def asking(body: dict[str, str], path: str = "/translate", version: str = "1.1") -> bytes:
    """A request, byte for byte."""
    content = json.dumps({"target": "de", **body}).encode()
    lines = (f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_a_client_that_has_closed_its_side_gets_its_answer(
    path: str, version: str, engine: HeldEngine
) -> None:
    with LocalServer({"en-de": engine}) as server:
        client = server.open(asking({"q": SOURCES[0]}, path, version))
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: engine.batches)
        if version == "1.1":  # by which the server sees that it still reads
            assert client.recv(1 << 10).startswith(b"HTTP/1.1 102 ")
        engine.released.set()
        answer = received(client)
        assert b" 200 " in answer and SOURCES[0].encode() in answer
        wait_until(lambda: server.open_connections == 0)


def test_all_requests_that_came_before_a_client_closed_its_side_are_answered(
    engine: HeldEngine,
) -> None:
    with LocalServer({"en-de": engine}) as server:
        client = server.open(b"".join(asking({"q": text}) for text in SOURCES[:3]) + b"POST /tr")
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: engine.batches)
        engine.released.set()
        answer = received(client)
        assert answer.count(b"HTTP/1.1 200 ") == 3
        assert all(text.encode() in answer for text in SOURCES[:3])


def test_a_client_that_closes_its_side_within_its_request_is_let_go(engine: HeldEngine) -> None:
    with LocalServer({"en-de": engine}) as server:
        for part in (b"", b"POST /tr", asking({"q": SOURCES[0]})[:-5]):
            client = server.open(part)
            client.shutdown(socket.SHUT_WR)
            assert received(client) == b""
    assert engine.batches == []


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection to which it has sent nothing."""
    try:
        return received(connection) == b""
    except ConnectionResetError:  # it had not read all that was sent
        return True


def test_beyond_the_limit_the_connection_that_has_waited_longest_is_closed(
    engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.server.run.capacity", lambda: 5)
    with LocalServer({"en-de": engine}) as server:
        busy = server.open(asking({"q": SOURCES[0]}))
        wait_until(lambda: engine.batches)
        idle = [server.open(part) for part in (b"", b"POST /tr", b"", b"POST", b"", b"")]
        assert all(is_closed(each) for each in idle[:2])
        wait_until(lambda: server.open_connections == 5)
        engine.released.set()
        assert server.translated(SOURCES[1]) == SOURCES[1]
        assert is_closed(idle[2])
        # Kept alive by its client, the connection waits again, for less time than others.
        for _ in range(3):
            idle.append(server.open())
        assert all(is_closed(each) for each in idle[3:6])
        assert server.translated(SOURCES[2]) == SOURCES[2]
        assert b" 200 " in busy.recv(1 << 16)


def test_if_all_connections_are_busy_a_new_one_is_closed(
    engine: HeldEngine, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.server.run.capacity", lambda: 3)
    with LocalServer({"en-de": engine}) as server:
        answers = [ask(server, pool, text) for text in SOURCES[:3]]
        wait_until(lambda: server.open_requests == 3)
        assert is_closed(server.open())
        engine.released.set()
        assert all(answer.result().status_code == 200 for answer in answers)


def test_an_answer_that_takes_too_long_is_refused(engine: HeldEngine) -> None:
    with LocalServer({"en-de": engine}, Limits(seconds=0.1)) as server:
        response = server.post("/translate", {"q": SOURCES[0]})
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert_mentions(response.json()["error"], "0.1 s")
        (line,) = server.post("/translate/stream", {"q": SOURCES[0]}).text.splitlines()
        assert_mentions(line, "error", "0.1 s")
        wait_until(lambda: server.metric("edgewise_waiting_sentences") == 0)


def test_beyond_the_limit_requests_are_refused_at_once(
    engine: HeldEngine, pool: ThreadPoolExecutor
) -> None:
    with LocalServer({"en-de": engine}, Limits(waiting=3)) as server:
        answers = [ask(server, pool, text) for text in SOURCES[:3]]
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 3)
        response = server.post("/translate", {"q": SOURCES[3]})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert_mentions(response.json()["error"], "queue is full", 3)
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/health").status_code == 200
        engine.released.set()
        assert all(answer.result().status_code == 200 for answer in answers)
        assert server.client.get("/ready").status_code == 200
        assert server.post("/translate", {"q": SOURCES[3]}).status_code == 200


def test_more_connections_than_requests_may_be_open_are_refused_but_health_is_answered(
    engine: HeldEngine,
) -> None:
    engine.released.set()
    with LocalServer({"en-de": engine}, Limits(requests=2)) as server:
        incomplete = [server.open(HEADERS + b"Content-Length: 9\r\n\r\n{") for _ in range(2)]
        wait_until(lambda: server.open_requests == 2)
        response = server.post("/translate", {"q": SOURCES[0]})
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert server.client.get("/health").status_code == 200
        # A client that is still sending gets its answer when it has sent all.
        sending = server.open(HEADERS + b"Content-Length: 2\r\n\r\n")
        wait_until(lambda: server.open_requests == 3)
        time.sleep(0.1)
        assert server.open_requests == 3
        sending.sendall(b"{}")
        assert b" 503 " in received(sending)
        for connection in incomplete:
            connection.close()
        wait_until(lambda: server.post("/translate", {"q": SOURCES[0]}).status_code == 200)


def test_the_first_sentence_of_a_stream_comes_before_the_others_are_done(
    engine: HeldEngine,
) -> None:
    engine.batch_tokens = 1  # one sentence at a time
    with LocalServer({"en-de": engine}) as server:
        body = {"q": "\n".join(SOURCES[:12]), "source": "en", "target": "de"}
        engine.permits.release()
        with server.client.stream("POST", "/translate/stream", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert server.metric("edgewise_waiting_sentences") == 11
            engine.released.set()
            assert len(list(lines)) == 12  # and one for the end of the text
        wait_until(lambda: server.metric("edgewise_waiting_sentences") == 0)
    assert engine.batches == [1] * 12


def test_a_short_request_is_answered_while_a_long_one_is_computed(
    engine: HeldEngine, pool: ThreadPoolExecutor
) -> None:
    with LocalServer({"en-de": engine}) as server:
        long = ask(server, pool, LONG)
        wait_until(lambda: engine.batches == [1])
        short = ask(server, pool, SOURCES[0])
        wait_until(lambda: engine.batches == [1, 1])
        engine.permits.release()  # which the innermost search takes
        assert short.result().json()["translatedText"] == SOURCES[0]
        assert not long.done()
        engine.released.set()
        assert long.result().status_code == 200


@pytest.mark.parametrize("path", ["/alternatives", "/explain"])
def test_a_request_within_another_is_dropped_when_its_client_is_gone(
    path: str, engine: HeldEngine, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "require_explained", lambda self: None)
    with LocalServer({"en-de": engine}) as server:
        long = ask(server, pool, LONG)
        wait_until(lambda: len(engine.batches) == 1)
        body = json.dumps({"q": SOURCES[0], "target": "de"}).encode()
        head = HEADERS.replace(b"/translate", path.encode())
        client = server.open(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: len(engine.batches) == 2)
        client.close()
        wait_until(lambda: server.metric("edgewise_waiting_requests") == 1)
        wait_until(lambda: server.metric("edgewise_waiting_sentences") == 1)
        assert not long.done()
        engine.released.set()
        assert long.result().status_code == 200


def test_of_many_long_requests_to_a_new_server_those_that_would_be_late_are_refused_at_once(
    engine: HeldEngine, pool: ThreadPoolExecutor
) -> None:
    with LocalServer({"en-de": engine}, Limits(seconds=5.0)) as server:
        body = {"q": LONG, "prefix": LONG[:40], "alternatives": 10, "source": "en", "target": "de"}
        answers = [
            pool.submit(httpx2.post, f"{server.url}/alternatives", json=body, timeout=PATIENCE)
            for _ in range(8)
        ]
        # Before anything has been measured: the engine is not released.
        wait_until(lambda: sum(answer.done() for answer in answers) >= 4)
        for answer in answers:
            if answer.done():
                assert answer.result().status_code == 503
                assert int(answer.result().headers["retry-after"]) > 1
                assert_mentions(answer.result().json()["error"], "waiting", "5 s")
        engine.released.set()


def test_slow_bodies_get_408_and_slow_headers_are_closed(engine: HeldEngine) -> None:
    engine.released.set()
    limits = Limits(body_seconds=0.4, header_seconds=0.4)
    with LocalServer({"en-de": engine}, limits) as server:
        slow_body = server.open(HEADERS + b'Content-Length: 100\r\n\r\n{"q":')
        slow_headers = server.open(HEADERS + b"X-Slow: ")
        silent = server.open()
        assert server.translated("a dog") == "a dog"  # meanwhile others are answered
        answer = received(slow_body)
        assert b"HTTP/1.1 408 " in answer
        assert_mentions(answer.decode(), "0.4 s")
        assert received(slow_headers) == b"" and received(silent) == b""


def test_a_client_that_does_not_read_its_answers_is_disconnected(engine: HeldEngine) -> None:
    with LocalServer({"en-de": engine}, Limits(seconds=0.3)) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        wait_until(lambda: server.open_connections == 1)
        # Answers of megabytes, more than the system buffers.
        path = b"/swagger/swagger-ui-bundle.js"
        connection.sendall((b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n") * 6)
        wait_until(lambda: server.open_connections == 0)
        connection.close()
        engine.released.set()
        assert server.translated("a dog") == "a dog"


@pytest.mark.parametrize("path", ["/", "/health", "/translate", "/docs"])
def test_a_host_that_is_not_ours_is_refused_before_anything_is_done(
    path: str, engine: HeldEngine
) -> None:
    with LocalServer({"en-de": engine}, Limits(hosts=frozenset(["ours.example"]))) as server:
        for host in ("evil.example", "evil.example:8000", "x" * 3000, "localhost.evil.example"):
            answer = server.client.request("POST", path, headers={"host": host}, content=b"{")
            assert answer.status_code == 421
            assert_mentions(answer.json()["error"], "--allow-host")
            assert host[:50] in answer.text and len(answer.text) < 300
        for host in ("ours.example:81", "OURS.example.", "127.0.0.1", "[::1]:80", "a.localhost"):
            assert server.client.get("/health", headers={"host": host}).status_code == 200
        old = received(server.open(b"GET /health HTTP/1.0\r\n\r\n"))
        assert b" 200 " in old


def test_with_an_asterisk_any_host_is_answered(engine: HeldEngine) -> None:
    with LocalServer({"en-de": engine}, Limits(hosts=frozenset(["*"]))) as server:
        for host in ("any.example", ""):
            assert server.client.get("/health", headers={"host": host}).status_code == 200


def test_what_a_client_sent_is_shortened_where_it_is_told(engine: HeldEngine) -> None:
    many = "x" * 9000
    with LocalServer({"en-de": engine}) as server:
        for answer in (
            server.client.request(many, "/health"),
            server.client.request(many[:30_000], "/" + many),
            server.client.get("/" + many),
            server.client.get("/tables", params={"model": many}),
            server.client.get("/tables", params={"layer": many}),
            server.client.get("/tables", params={"stack": many}),
            server.client.get("/page/" + many),
            server.client.get("/page/%00" + many),
            server.client.post("/translate", content=b"{}", headers={"content-type": many}),
            server.post("/translate", {"q": "a", "target": many}),
            server.post("/translate", {"q": "a", "target": many[:64]}),
            server.post("/translate", {"q": "a", "model": many}),
            server.post("/translate", {"q": "a", "model": many[:256]}),
            server.post("/translate", {"q": "a", "format": many}),
            server.post("/explain", {"q": "a", "stack": many}),
            server.client.post("/translate", data={many: many}),
            server.post("/translate", {many: many}),
        ):
            assert answer.status_code in (400, 404, 405, 415), answer.text
            assert 10 < len(answer.json()["error"]) < 250, answer.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), 503),
        (OutOfMemoryError("out of memory on cpu"), 503),
        (OSError(errno.EMFILE, "Too many open files"), 503),
        (RuntimeError("can't start new thread"), 503),
        (DataError("the weights are damaged"), 500),
        (EdgewiseError("CTranslate2 failed: of itself"), 500),
    ],
)
def test_what_the_system_lacks_or_an_engine_cannot_do_is_told_and_logged_in_a_line(
    error: Exception,
    status: int,
    engine: HeldEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.released.set()
    search = engine.search

    def failing(sources: list[list[int]], *rest: object) -> object:
        if engine.vocabulary.decode(sources[0]) == SOURCES[0]:
            raise error
        return search(sources, *rest)

    monkeypatch.setattr(engine, "search", failing)
    with LocalServer({"en-de": engine}) as server:
        answer = server.post("/translate", {"q": SOURCES[0]})
        assert answer.status_code == status
        assert ("retry-after" in answer.headers) == (status == 503)
        (line,) = server.post("/translate/stream", {"q": SOURCES[0]}).text.splitlines()
        assert json.loads(line)["error"] == answer.json()["error"]
        # The text is that of another's: it is for the log.
        assert not str(error) or str(error) not in answer.text
        assert server.translated(SOURCES[1:3]) == SOURCES[1:3]
    assert len(caplog.records) == 2
    assert all(str(error) in each.message and not each.exc_info for each in caplog.records)


def test_garbage_after_a_request_does_not_keep_it_from_its_answer(engine: HeldEngine) -> None:
    engine.released.set()
    with LocalServer({"en-de": engine}) as server:
        for garbage in (b"\0\xff garbage\r\n\r\n", b"GARBAGE\r\n\r\n", b"\x16\x03" * 50_000):
            answer = received(server.open(asking({"q": SOURCES[0]}) + garbage))
            assert answer.startswith(b"HTTP/1.1 200 ") and SOURCES[0].encode() in answer
            assert b"HTTP/1.1 400 " in answer
        assert server.translated(SOURCES[1]) == SOURCES[1]


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_is_set_does_not_matter(
    jump: float, engine: HeldEngine, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    with LocalServer({"en-de": engine}, Limits(header_seconds=30.0)) as server:
        incomplete = server.open(asking({"q": SOURCES[1]})[:-3])
        answer = ask(server, pool, SOURCES[0])
        wait_until(lambda: engine.batches)
        monkeypatch.setattr(time, "time", lambda: clock() + jump)
        assert server.client.get("/ready").status_code == 200
        engine.released.set()
        assert answer.result().status_code == 200
        incomplete.sendall(asking({"q": SOURCES[1]})[-3:])
        assert b" 200 " in incomplete.recv(1 << 16)


def test_two_models_are_told_apart_by_name(vocabulary: Vocabulary) -> None:
    engines = {name: HeldEngine(vocabulary, released=True) for name in ("first", "second")}
    with LocalServer(engines) as server:
        server.translated("a dog", model="second")
        server.translated("a dog")
        assert [len(engine.batches) for engine in engines.values()] == [1, 1]
