"""edgewise serve: what batching gains, ten times the load it can bear, long requests beside short
ones, ten thousand requests.

    python benchmarks/bench_serve.py MODEL ../shared/data/multi30k/test_2016_flickr.en.gz
    python benchmarks/bench_serve.py MODEL test_2016_flickr.en.gz --only long_requests

Sentences are of the file, beam 4, two threads. 64 clients ask for a sentence each, again and again:
a server that computes what arrives together, and one that computes a sentence at a time
(`--batch-tokens 1`), in turns. Then requests of 16 sentences come ten times as fast as they can be
answered, for a minute. Then requests for alternatives, with a prefix of 1,000 words or a sentence
of 1,000 words, come while one client asks for a sentence again and again. Then 10,000 requests of a
sentence. About ten minutes.
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from http_load import Answer, Server, at_rate, by_clients, post, request, served
from timing import machine, save

from edgewise.data.text import TextFile

CLIENTS, REQUESTS, ROUNDS = 64, 256, 5
TOGETHER, OVERLOAD, SECONDS, LIMIT = 16, 10, 60, 10
SOAK, STEP = 10_000, 1000
LONG_WORDS, MANY = 1000, 40
Rows = list[tuple[str, str]]


def throughput(model: Path, sentences: Sequence[str]) -> Rows:
    """Requests a second, batched and not, and whether each answer is the serial one."""
    requests = [request(text) for text in islice(cycle(sentences), REQUESTS)]
    with (
        served(model, "--threads", "2") as batched,
        served(model, "--threads", "2", "--batch-tokens", "1") as single,
    ):
        serial = asyncio.run(by_clients(single.port, requests, 1))
        contestants = {"batched": batched, "one at a time": single}
        speeds: dict[str, list[float]] = {name: [] for name in contestants}
        latencies: dict[str, list[float]] = {name: [] for name in contestants}
        different = 0
        for number in range(ROUNDS + 1):
            for name, server in contestants.items():
                began = time.perf_counter()
                answers = asyncio.run(by_clients(server.port, requests, CLIENTS))
                seconds = time.perf_counter() - began
                different += sum(a.body != b.body for a, b in zip(answers, serial, strict=True))
                if number:  # the first one is to get warm
                    speeds[name].append(len(requests) / seconds)
                    latencies[name] += [answer.seconds for answer in answers]
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return [
        (
            f"{CLIENTS} clients, {name}",
            f"{medians[name]:.0f} requests a second; half of them within "
            f"{statistics.median(latencies[name]):.2f} s, 99% within "
            f"{statistics.quantiles(latencies[name], n=100)[98]:.2f} s",
        )
        for name in medians
    ] + [
        ("batched to one at a time", f"{medians['batched'] / medians['one at a time']:.2f}x"),
        ("answers other than the serial ones", f"{different} of {2 * (ROUNDS + 1) * REQUESTS}"),
    ]


def overload(model: Path, sentences: Sequence[str]) -> Rows:
    """Ten times the requests a second that eight clients get answered."""
    content = request(sentences[:TOGETHER])
    with served(model, "--threads", "2", "--timeout", str(LIMIT)) as server:
        began = time.perf_counter()
        serial = asyncio.run(by_clients(server.port, [content] * 60, 8))
        bearable = 60 / (time.perf_counter() - began)
        before = server.resident
        answers, most = asyncio.run(_watched(server, content, OVERLOAD * bearable))
        after = server.resident
    statuses = Counter(answer.status for answer in answers)
    good = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    different = sum(answer.body != serial[0].body for answer in good)
    return [
        (f"requests of {TOGETHER} sentences that it can bear", f"{bearable:.1f} a second"),
        (
            f"{OVERLOAD} times as many, for {SECONDS} s",
            ", ".join(f"{count:,} with {status}" for status, count in sorted(statuses.items())),
        ),
        (
            f"answered, with {LIMIT} s allowed",
            f"{len(good) / SECONDS:.1f} a second; the slowest took "
            f"{max(answer.seconds for answer in good):.1f} s; {different} are not the serial one",
        ),
        (
            "refused",
            f"half of them within {statistics.median(each.seconds for each in refused):.3f} s, the "
            f"slowest {max(each.seconds for each in refused):.1f} s; "
            f"{sum(each.retry_after for each in refused):,} of {len(refused):,} with Retry-After",
        ),
        (
            "memory before, at most, and after",
            f"{before >> 20}, {most >> 20}, {after >> 20} MiB",
        ),
    ]


async def _watched(server: Server, content: bytes, rate: float) -> tuple[list[Answer], int]:
    """The answers, and the most memory meanwhile."""
    load = asyncio.create_task(at_rate(server.port, content, rate, SECONDS))
    most = 0
    while not load.done():
        most = max(most, server.resident)
        await asyncio.sleep(0.2)
    return await load, most


def long_requests(model: Path, sentences: Sequence[str]) -> Rows:
    """Long requests for alternatives, and how long short requests take meanwhile."""
    words = list(islice(cycle(" ".join(sentences).split()), LONG_WORDS))
    text = " ".join(words).replace(".", ",")  # one sentence
    contents = {
        f"a prefix of {LONG_WORDS:,} words": post(
            "/alternatives", {"q": sentences[0], "prefix": text, "alternatives": 10}
        ),
        f"a sentence of {LONG_WORDS:,} words": post(
            "/alternatives", {"q": text, "alternatives": 10}
        ),
    }
    rows: Rows = []
    with served(model, "--threads", "2", "--max-source-tokens", str(4 * LONG_WORDS)) as server:
        asyncio.run(by_clients(server.port, [request(text) for text in sentences[:8]], 1))
        for count in (1, MANY):
            for name, content in contents.items():
                answers, short = asyncio.run(_beside(server.port, [content] * count, sentences))
                rows.append((f"/alternatives with {name}, {count} at once", _summary(answers)))
                rows.append(("requests of a sentence meanwhile", _summary(short)))
    return rows


async def _beside(
    port: int, long: Sequence[bytes], sentences: Sequence[str]
) -> tuple[list[Answer], list[Answer]]:
    """The answers to long requests, and those of a client that asks until these are there."""
    load = asyncio.create_task(by_clients(port, long, len(long)))
    short: list[Answer] = []
    for sentence in cycle(sentences):
        short += await by_clients(port, [request(sentence)], 1)
        if load.done():
            break
    return await load, short


def _summary(answers: Sequence[Answer]) -> str:
    """Status codes, each with the seconds that the slowest took."""
    slowest: dict[int, float] = {}
    for answer in answers:
        slowest[answer.status] = max(answer.seconds, slowest.get(answer.status, 0.0))
    counts = Counter(answer.status for answer in answers)
    return ", ".join(
        f"{counts[status]:,} with {status}, the slowest {seconds:.2f} s"
        for status, seconds in sorted(slowest.items())
    )


def soak(model: Path, sentences: Sequence[str]) -> Rows:
    """Memory after each thousand requests."""
    requests = [request(text) for text in islice(cycle(sentences), STEP)]
    with served(model, "--threads", "2") as server:
        memory = [server.resident]
        for _ in range(SOAK // STEP):
            asyncio.run(by_clients(server.port, requests, CLIENTS))
            memory.append(server.resident)
    return [
        (
            f"memory before and after each {STEP:,} of {SOAK:,} requests",
            ", ".join(str(size >> 20) for size in memory) + " MiB",
        )
    ]


PARTS = (throughput, overload, long_requests, soak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="model folder, English to German")
    parser.add_argument("source", help="file of sentences")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part")
    options = parser.parse_args()
    lines = TextFile.parse(options.source).lines()
    sentences = [(line or b"").decode() for line in islice(lines, STEP)]
    rows: Rows = []
    for part in PARTS:
        if options.only not in (None, part.__name__):
            continue
        rows += part(options.model, sentences)
        print(*(f"{name}: {value}" for name, value in rows), sep="\n", flush=True)
    text = "\n".join(
        [
            *("# edgewise serve", "", "| | |", "|---|---|"),
            *(f"| {name} | {value} |" for name, value in rows),
            "",
            *(f"- {name}: {value}" for name, value in machine(2).items()),
        ]
    )
    print(save("serve", {"rows": rows}, text + "\n"))


if __name__ == "__main__":
    main()
