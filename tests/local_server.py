"""A server in a thread of the test's process, and an engine that waits for the test.

Tests with these need no sleeps: the test decides when an answer is ready.
"""

import re
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import numpy as np
from numpy.typing import NDArray
from waiting import PATIENCE

from edgewise.data.tokenizer import Tokenizer
from edgewise.decoding import DecodingSettings, Translator
from edgewise.decoding.engine import Hypothesis, Tokens, Wanted
from edgewise.model.settings import ModelSettings
from edgewise.server.app import Application
from edgewise.server.limits import Limits
from edgewise.server.models import Models, Served
from edgewise.server.run import Ended, Server, bound, compute_thread


class HeldEngine:
    """An engine that returns each source as its translation, when the test releases the batch.

    `permits.release()` releases one batch, `released.set()` all. A batch that is cancelled, or that
    has waited for `seconds`, is released as well.
    """

    settings = ModelSettings(d_model=16, heads=2, d_ff=8, encoder_layers=1, decoder_layers=1)
    parameters = 0
    batch_tokens = 4000

    def __init__(
        self, vocabulary: Tokenizer, *, released: bool = False, seconds: float = PATIENCE
    ) -> None:
        self.vocabulary, self.seconds = vocabulary, seconds
        self.permits, self.released = threading.Semaphore(0), threading.Event()
        self.batches: list[int] = []  # how many sentences each had
        if released:
            self.released.set()

    def search(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted | None = None,
    ) -> list[list[Hypothesis]]:
        self.batches.append(len(sources))
        end = time.monotonic() + self.seconds
        while not self.permits.acquire(timeout=0.002):
            if self.released.is_set() or time.monotonic() > end:
                break
            if wanted is not None and not any(wanted(i) for i in range(len(sources))):
                break
        return [[Hypothesis(tuple(tokens), -1.0, -1.0)] * settings.n_best for tokens in sources]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        return [-1.0] * len(sources)

    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        return [
            np.ones((len(t), len(s)), np.float32) for s, t in zip(sources, targets, strict=True)
        ]


class Asking:
    """An HTTP client for tests; the default languages are English and German."""

    host: str
    port: int

    def connect(self) -> None:
        self.url = f"http://{self.host}:{self.port}"
        self.client = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def open(self, sent: bytes = b"") -> socket.socket:
        """Open a connection and send these bytes."""
        connection = socket.create_connection((self.host, self.port), timeout=PATIENCE)
        connection.sendall(sent)
        return connection

    def post(self, path: str, body: Mapping[str, Any], **options: Any) -> httpx2.Response:
        return self.client.post(path, json={"source": "en", "target": "de", **body}, **options)

    def translated(self, text: str | list[str], **body: Any) -> Any:
        response = self.post("/translate", {"q": text, **body})
        assert response.status_code == 200, response.text
        return response.json()["translatedText"]

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        found = re.search(rf"^{name} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        assert found, name
        return float(found[1])


def received(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    content = b""
    with connection:
        while part := connection.recv(1 << 16):
            content += part
    return content


class LocalServer(Asking):
    """A server of translators, by name such as en-de, that runs until the block ends."""

    def __init__(
        self, translators: Mapping[str, Translator | HeldEngine], limits: Limits | None = None
    ) -> None:
        listener = bound("127.0.0.1", 0)
        self.host, self.port = listener.getsockname()
        self.connect()
        served = [
            Served(name, "en", "de", Translator(each) if isinstance(each, HeldEngine) else each)
            for name, each in translators.items()
        ]
        self.engines = [each for each in translators.values() if isinstance(each, HeldEngine)]
        self._listening = threading.Event()
        self._server = Server(
            Models(served), limits or Limits(), listener, compute_thread(), self._listening.set
        )
        self.ended: Ended | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.ended = self._server.serve_until_stopped()

    def __enter__(self) -> "LocalServer":
        self._thread.start()
        assert self._listening.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for engine in self.engines:
            engine.released.set()
        self.client.close()
        self.join()

    def stop(self) -> None:
        """Begin to shut down, as SIGTERM would."""
        self._server.stop(signal.SIGTERM)

    def join(self) -> Ended:
        """Wait until it has shut down."""
        self._thread.join(PATIENCE)
        assert self.ended is not None, "the server is still running"
        return self.ended

    @property
    def open_connections(self) -> int:
        return len(self._server.server_state.connections)

    @property
    def open_requests(self) -> int:
        """Number of unanswered requests, including those whose body has not arrived."""
        app = self._server.config.app
        assert isinstance(app, Application)
        return app.open
