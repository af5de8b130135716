"""`edgewise serve`: the API as clients of LibreTranslate know it, and what it refuses."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from libretranslatepy import LibreTranslateAPI
from local_server import received
from messages import assert_mentions
from served import SOURCES, Server
from tiny_model import make_model, make_vocabulary

from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import Translator

HOSTILE = "<script>alert(1)</script>"
SHORT = {"max_length": 9}  # random weights find no end


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def folder(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("en-de") / "model", vocabulary, generation=SHORT)


@pytest.fixture(scope="module")
def server(
    folder: Path, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Three models: two from English to German, one of them with a name that is a script, and one
    without positions.
    """
    others = tmp_path_factory.mktemp("others")
    hostile = make_model(others / "a", vocabulary, seed=2, generation=SHORT, languages=("en", "de"))
    plain = make_model(
        others / "b", vocabulary, seed=3, generation=SHORT, max_distance=None, sinusoids=True
    )
    models = (f"en-de={folder}", f"{HOSTILE}={hostile}", f"fr-en={plain}")
    options = [value for model in models for value in ("--model", model)]
    with Server(*options) as started:
        yield started


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return Translator.load(folder)


def error(response: httpx2.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    (message,) = response.json().values()
    assert isinstance(message, str) and "Traceback" not in message
    return message


def test_a_text_gives_a_text_and_a_list_a_list(server: Server, translator: Translator) -> None:
    expected = translator.translate(SOURCES[:3])
    assert server.translated(SOURCES[0]) == expected[0]
    assert server.translated(SOURCES[:3]) == expected
    assert server.translated([]) == []


def test_the_client_of_libretranslate_translates(server: Server, translator: Translator) -> None:
    client = LibreTranslateAPI(server.url)
    assert client.translate(SOURCES[0], "en", "de") == translator.translate(SOURCES[:1])[0]
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "fr", "name": "French", "targets": ["en"]},
        {"code": "de", "name": "German", "targets": []},
    ]


def test_forms_may_have_several_texts(server: Server, translator: Translator) -> None:
    fields = {"q": SOURCES[:2], "source": "en", "target": "de", "api_key": ""}
    response = server.client.post("/translate", data=fields)
    assert response.json()["translatedText"] == translator.translate(SOURCES[:2])


def test_sentences_are_translated_each_and_what_is_between_them_stays(
    server: Server, translator: Translator
) -> None:
    first, second = translator.translate(SOURCES[:2])
    text = f"  {SOURCES[0]}  {SOURCES[1]}\n\n\t{SOURCES[0]}\n"
    assert server.translated(text) == f"  {first}  {second}\n\n\t{first}\n"
    assert server.translated("") == "" and server.translated(" \n") == " \n"


def test_markup_stays(server: Server, translator: Translator) -> None:
    (inner,) = translator.translate(["the dog"])
    found = server.translated("<p id='x'>the dog</p><script>a. B</script>", format="html")
    escaped = inner.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert found == f"<p id='x'>{escaped}</p><script>a. B</script>"


def test_alternatives_are_the_next_best(server: Server, translator: Translator) -> None:
    best = translator.translations(SOURCES[:2], n_best=3)
    answer = server.post("/translate", {"q": SOURCES[:2], "alternatives": 2}).json()
    assert len({each.text for found in best for each in found}) == 6
    assert answer["translatedText"] == [each[0].text for each in best]
    assert answer["alternatives"] == [[each[1].text, each[2].text] for each in best]
    answer = server.post("/translate", {"q": SOURCES[0], "alternatives": 2}).json()
    assert answer["alternatives"] == [best[0][1].text, best[0][2].text]
    assert "alternatives" not in server.post("/translate", {"q": SOURCES[0]}).json()


def test_auto_says_which_language_it_stood_for(server: Server) -> None:
    answer = server.post("/translate", {"q": "a", "source": "auto"}).json()
    assert answer["detectedLanguage"] == {"language": "en", "confidence": 0.0}
    answer = server.post("/translate", {"q": ["a", "b"], "source": "auto"}).json()
    assert len(answer["detectedLanguage"]) == 2
    assert "detectedLanguage" not in server.post("/translate", {"q": "a"}).json()


def test_what_is_not_set_may_be_null_and_the_content_type_may_be_missing(server: Server) -> None:
    body = {"q": "a", "target": "de", "source": None, "format": None, "alternatives": None}
    for content_type in ("application/json; charset=utf-8", ""):
        response = server.client.post(
            "/translate", content=json.dumps(body), headers={"content-type": content_type}
        )
        assert response.json()["translatedText"] == server.translated("a")


def test_equal_alternatives_are_one(server: Server) -> None:
    answer = server.post("/translate", {"q": ["", "the dog"], "alternatives": 3}).json()
    assert answer["alternatives"][0] == []
    assert len(set(answer["alternatives"][1])) == len(answer["alternatives"][1])


def test_tokens_are_counted_however_many_a_character_has(server: Server) -> None:
    for path in ("/translate", "/translate/stream", "/explain", "/alternatives"):
        refused = server.post(path, {"q": "\u2581" * 341})
        assert_mentions(error(refused, 400), "q", "1,365 tokens", "1,024")


def test_a_model_can_be_named(server: Server) -> None:
    first, other = (server.translated(SOURCES[0], model=name) for name in ("en-de", HOSTILE))
    assert first != other and first == server.translated(SOURCES[0])
    described = server.client.get("/models").json()
    assert [model["name"] for model in described["models"]] == ["en-de", HOSTILE, "fr-en"]
    assert [model["max_distance"] for model in described["models"]] == [5, 5, None]
    assert described["models"][0]["parameters"] > 10_000


def test_a_stream_has_a_line_for_each_sentence_and_is_the_same_text(server: Server) -> None:
    texts = [f" {SOURCES[0]} {SOURCES[1]}\n{SOURCES[2]}\n", "", SOURCES[3]]
    with server.client.stream(
        "POST", "/translate/stream", json={"q": texts, "source": "en", "target": "de"}
    ) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.iter_lines()]
    assert [line["source"] for line in lines] == [*SOURCES[:3], "", "", SOURCES[3], ""]
    joined = [
        "".join(line["before"] + line["translation"] for line in lines if line["text"] == i)
        for i in range(3)
    ]
    assert joined == server.translated(texts)


def test_alternatives_for_a_word_begin_with_the_prefix_and_differ_after_it(
    server: Server, translator: Translator
) -> None:
    words = translator.translate([SOURCES[0]])[0].split(" ")
    prefix = " ".join(words[:1])
    answer = server.post("/alternatives", {"q": SOURCES[0], "prefix": prefix, "alternatives": 4})
    found = [each["text"] for each in answer.json()["alternatives"]]
    assert 1 <= len(found) <= 4 and len(set(found)) == len(found)
    assert all(text.startswith(prefix + " ") for text in found)
    scores = [each["score"] for each in answer.json()["alternatives"]]
    assert scores == sorted(scores, reverse=True)
    free = server.post("/alternatives", {"q": SOURCES[0]}).json()["alternatives"]
    assert len({each["text"] for each in free}) == len(free) == 5


@pytest.mark.parametrize("stack", ["cross", "encoder", "decoder"])
def test_an_explanation_has_a_number_for_each_query_and_key(server: Server, stack: str) -> None:
    answer = server.post("/explain", {"q": SOURCES[0], "stack": stack}).json()
    assert answer["translation"] == server.translated(SOURCES[0])
    queries, keys = len(answer["queries"]), len(answer["keys"])
    assert len(answer["query_words"]) == queries and len(answer["key_words"]) == keys
    assert len(answer["layers"]) == 2 and all(len(heads) == 4 for heads in answer["layers"])
    for heads in answer["layers"]:
        for head in heads:
            assert len(head["weights"]) == queries == len(head["content"])
            assert (head["position"] is None) == (stack == "cross")
            for row in head["weights"]:
                assert len(row) == keys and abs(sum(row) - 1) < 1e-3


def test_logits_of_an_explanation_give_its_weights(server: Server) -> None:
    import torch

    body = {"q": SOURCES[0], "stack": "encoder", "translation": "x"}
    answer = server.post("/explain", body).json()
    head = answer["layers"][1][2]
    logits = torch.tensor(head["content"]) + torch.tensor(head["position"])
    torch.testing.assert_close(
        torch.softmax(logits, 1), torch.tensor(head["weights"]), atol=1e-4, rtol=0
    )
    assert answer["keys"][-1] == "</s>" and answer["key_words"][-1] == -1


def test_an_explanation_of_a_given_translation_is_of_that(server: Server) -> None:
    answer = server.post("/explain", {"q": "the dog", "translation": "der Hund"}).json()
    assert "".join(answer["queries"][:-1]).replace("\u2581", " ").strip() == "der Hund"


def test_tables_are_those_of_the_model(server: Server, translator: Translator) -> None:
    import torch

    answer = server.client.get("/tables", params={"stack": "decoder", "layer": 2}).json()
    assert answer["distances"] == list(range(-5, 6)) and answer["shared"] is False
    attention = translator.engine.models[0].decoder[1].attention
    for name, table in (("keys", attention.key_table), ("values", attention.value_table)):
        torch.testing.assert_close(torch.tensor(answer[name]), table.detach(), atol=1e-4, rtol=0)
    refused = server.client.get("/tables", params={"model": "fr-en"})
    assert_mentions(error(refused, 400), "'fr-en'")
    assert_mentions(error(server.client.get("/tables?layer=3"), 400), "layer", 2, 3)
    assert_mentions(error(server.client.get("/tables?layer=x"), 400), "layer")


def test_health_readiness_and_counters_are_told(server: Server) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/ready").json() == {"status": "ok"}
    before = server.metric("edgewise_batch_items_count")
    server.translated(SOURCES[0])
    assert server.metric("edgewise_batch_items_count") == before + 1
    text = server.client.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'edgewise_requests_total{path="/translate",status="200"}' in text.text
    assert "process_resident_memory_bytes" in text.text


@pytest.mark.parametrize(
    ("body", "status", "facts"),
    [
        (b"{", 400, ("JSON",)),
        (b"\xff\xfe", 400, ("UTF-8",)),
        (b"[1]", 400, ("object", "list")),
        (b"[" * 100_000, 400, ("nested",)),
        (b'{"q": 1, "target": "de"}', 400, ("q", "string", "list")),
        (b'{"q": ["a", 1], "target": "de"}', 400, ("q.1", "string")),
        (b'{"target": "de"}', 400, ("q",)),
        (b'{"q": "a"}', 400, ("target",)),
        (b'{"q": "a\\u0000b", "target": "de"}', 400, ("q", "NUL")),
        (b'{"q": ["a", "b\\ud800"], "target": "de"}', 400, ("q", "surrogate")),
        (b'{"q": "a", "target": "xx"}', 400, ("target", "de, en", "'xx'")),
        (b'{"q": "a", "source": "xx", "target": "de"}', 400, ("source", "en", "'xx'")),
        (b'{"q": "a", "target": "de", "model": "x"}', 400, ("model", "en-de", "'x'")),
        (b'{"q": "a", "target": "de", "format": "pdf"}', 400, ("format", "'text'", "'html'")),
        (b'{"q": "a", "target": "de", "alternatives": 99}', 400, ("alternatives", 10)),
        (b'{"q": "a", "target": "de", "alternatives": ' + b"9" * 5000 + b"}", 400, (5000,)),
        (json.dumps({"q": "x " * 25_000, "target": "de"}).encode(), 400, ("q", "50,000")),
        (json.dumps({"q": "x" * 19_000, "target": "de"}).encode(), 400, ("q", "1,024")),
        (json.dumps({"q": ["x"] * 1001, "target": "de"}).encode(), 400, ("q", "1000 items")),
        (json.dumps({"q": "x\n" * 1001, "target": "de"}).encode(), 400, ("q", "1,000 sentences")),
        (b'{"q": "' + b"x" * 1_000_000 + b'"}', 413, ("256,384",)),
    ],
    ids=range(21),
)
@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_what_cannot_be_translated_is_refused_in_a_plain_sentence(
    server: Server, path: str, body: bytes, status: int, facts: tuple[object, ...]
) -> None:
    headers = {"content-type": "application/json"}
    response = server.client.post(path, content=body, headers=headers)
    assert_mentions(error(response, status), *facts)


@pytest.mark.parametrize(
    ("path", "body", "facts"),
    [
        ("/explain", {"q": ""}, ("q", "empty")),
        ("/explain", {"q": "x " * 200}, ("q", "64 tokens")),
        ("/explain", {"q": "x", "translation": "y " * 200}, ("translation", "64 tokens")),
        ("/explain", {"q": "x", "stack": "tower"}, ("stack", "'cross'", "'encoder'", "'decoder'")),
        ("/alternatives", {"q": " "}, ("q", "empty")),
        ("/alternatives", {"q": "x", "prefix": "y" * 2000}, ("prefix", "1,024")),
        ("/alternatives", {"q": "x", "alternatives": 0}, ("alternatives", 1)),
        ("/alternatives", {"q": ["x"]}, ("q", "string")),
    ],
    ids=range(8),
)
def test_other_paths_refuse_as_plainly(
    server: Server, path: str, body: dict[str, Any], facts: tuple[object, ...]
) -> None:
    assert_mentions(error(server.post(path, body), 400), *facts)


def test_a_body_of_another_kind_is_refused(server: Server) -> None:
    response = server.client.post("/translate", content=b"q", headers={"content-type": "a/b"})
    assert_mentions(error(response, 415), "application/json")
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = server.client.post("/translate", content=b"q=%ff&target=de", headers=form)
    assert_mentions(error(response, 400), "UTF-8")
    response = server.client.post("/translate", content=b'{"q": "a"}', headers=form)
    assert_mentions(error(response, 400), "JSON")
    response = server.client.post("/translate", content=b"q=x&" * 2000, headers=form)
    assert_mentions(error(response, 400), "1000 texts")
    response = server.client.post("/translate", content="q=\u00e4".encode(), headers=form)
    assert_mentions(error(response, 400), "UTF-8")


def test_unknown_paths_and_methods_are_told(server: Server) -> None:
    assert_mentions(error(server.client.get("/nothing"), 404), "GET /nothing")
    assert_mentions(error(server.client.get("/translate"), 405), "GET /translate")
    for path in (b"/page/../api.py", b"/page/%2e%2e/api.py", b"/page//etc/passwd"):
        request = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert b" 404 " in received(server.open(request)).partition(b"\r\n")[0]
    assert len(error(server.client.get("/" + "x" * 9000), 404)) < 600


def test_head_is_get_without_a_body(server: Server) -> None:
    for path in ("/", "/health", "/languages", "/page/style.css"):
        head, get = server.client.head(path), server.client.get(path)
        assert head.status_code == get.status_code == 200 and head.content == b"", path
        assert head.headers["content-length"] == str(len(get.content))


def test_answers_have_safe_headers(server: Server) -> None:
    for path in ("/", "/health", "/nothing", "/docs", "/page/style.css"):
        headers = server.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff" and "server" not in headers


def test_no_other_origin_may_read_an_answer(server: Server) -> None:
    origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for method, path in (("GET", "/models"), ("POST", "/translate"), ("OPTIONS", "/translate")):
        headers = server.client.request(method, path, headers=origin).headers
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_it_listens_at_the_loopback_address_only(server: Server) -> None:
    assert server.host == "127.0.0.1"
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", server.port)) != 0


def test_no_text_is_logged(server: Server) -> None:
    secret = "xyzzy"
    server.translated(f"{secret} dog")
    for path in ("/translate", "/translate/stream", "/explain", "/alternatives"):
        for value in (f"{secret}\0", f"{secret} " * 20_000, [{secret: 1}]):
            assert server.post(path, {"q": value}).status_code in (400, 413)
        server.client.post(path, content=secret.encode())
    server.client.get(f"/{secret}?{secret}={secret}", headers={secret: secret})
    server.client.request(secret, "/")
    received(server.open(secret.encode() * 3 + b"\r\n\r\n"))
    server.client.get("/health")
    assert secret not in "".join(server.said).lower()


def test_the_description_is_drawn_without_another_host(server: Server) -> None:
    page = server.client.get("/docs").text
    assert "://" not in page
    assert server.client.get("/swagger/swagger-ui-bundle.js").status_code == 200
    assert server.client.get("/openapi.json").json()["openapi"].startswith("3.")


def test_64_clients_at_once_get_what_each_would_get_alone(server: Server) -> None:
    alone = [server.client.post("/translate", json=body(text)).content for text in SOURCES]
    before = server.metric("edgewise_batch_items_count")

    async def everyone() -> list[bytes]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
            answers = (client.post("/translate", json=body(text)) for text in SOURCES)
            return [answer.content for answer in await asyncio.gather(*answers)]

    assert asyncio.run(everyone()) == alone
    assert len(set(alone)) > 20
    batches = server.metric("edgewise_batch_items_count") - before
    assert batches < len(SOURCES)  # some were computed together


def body(text: str) -> dict[str, str]:
    return {"q": text, "source": "en", "target": "de"}


def test_one_bad_request_disturbs_no_other(server: Server) -> None:
    expected = server.translated(SOURCES[:8])
    bad = [
        ("/translate", b'{"q": "' + b"x" * 1_000_000 + b'"}'),
        ("/translate", b"{"),
        ("/translate", b'{"q": "a\\u0000", "target": "de"}'),
        ("/explain", b'{"q": "' + b"x " * 400 + b'", "target": "de"}'),
    ]
    headers = {"content-type": "application/json"}
    with ThreadPoolExecutor(12) as pool:
        refused = [
            pool.submit(httpx2.post, server.url + path, content=content, headers=headers)
            for path, content in bad * 5
        ]
        answers = list(pool.map(server.translated, SOURCES[:8]))
    assert answers == expected
    assert {future.result().status_code for future in refused} == {400, 413}


HEADERS = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_with_a_false_length_is_refused(server: Server) -> None:
    huge = server.open(HEADERS + b"Content-Length: 99999999999\r\n\r\n{")
    assert b"HTTP/1.1 413 " in received(huge)
    chunked = server.open(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n")
    with chunked:
        for _ in range(20):
            chunked.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        chunked.sendall(b"0\r\n\r\n")
        assert b"HTTP/1.1 413 " in chunked.recv(1 << 16)
    nonsense = server.open(b"\x00\x01\x02 nonsense\r\n\r\n")
    assert b"400" in received(nonsense)
    assert server.translated("a dog")


@pytest.mark.parametrize("examples", [12, pytest.param(50, marks=pytest.mark.long)])
def test_the_description_holds_whatever_is_sent(
    server: Server, tmp_path: Path, examples: int
) -> None:
    """schemathesis makes requests of the OpenAPI description, and many that it does not allow."""
    program = Path(sys.executable).parent / "schemathesis"
    command = [
        *(str(program), "run", f"{server.url}/openapi.json"),
        *("--max-examples", str(examples)),
        *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance"),
        *("--phases", "examples,coverage,fuzzing", "--seed", "1", "--no-color"),
        *("--exclude-path", "/metrics", "--request-timeout", "30"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert server.translated("a dog")
