"""What each path answers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from edgewise.decoding.translator import Translation
from edgewise.errors import ArgumentError
from edgewise.server import messages
from edgewise.server.bodies import Message, read
from edgewise.server.failures import GoneError, LateError, told
from edgewise.server.limits import Limits
from edgewise.server.messages import Detected, TranslateAnswer, TranslateRequest
from edgewise.server.metrics import CONTENT_TYPE, Metrics
from edgewise.server.models import AUTO, Models, Served, UnknownError
from edgewise.server.passages import Passages
from edgewise.server.tasks import Explaining, Tabulating, Translating
from edgewise.server.work import Task, Work

LINES = "application/x-ndjson"
Result = TypeVar("Result")


class Api:
    """The models and the queue of one server; a method a path."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics, work: Work) -> None:
        self._models, self._limits, self._metrics, self._work = models, limits, metrics, work

    async def translate(self, request: Request) -> TranslateAnswer:
        """Translate a text, or a list of texts.

        Texts are split into sentences; lines, spaces and, with `html`, tags stay as they are. An
        alternative of a text has that alternative of each sentence. The body may be a form, too.
        """
        asked = await self._asked(request, TranslateRequest)
        model, passages, task = self._translating(asked)
        items = [sentence.source for sentence in passages.sentences]
        found: list[list[Translation]] = await self._computed(request, task, items)
        texts = [
            passages.joined([each[min(rank, len(each) - 1)].text for each in found])
            for rank in range(asked.alternatives + 1)
        ]
        others = [
            [text for text in dict.fromkeys(each) if text != each[0]]
            for each in zip(*texts, strict=True)
        ]
        detected = None
        if asked.source == AUTO:
            detected = Detected(language=model.source, confidence=0.0)
        single = isinstance(asked.q, str)
        return TranslateAnswer(
            translatedText=texts[0][0] if single else texts[0],
            alternatives=(others[0] if single else others) if asked.alternatives else None,
            detectedLanguage=detected if single or not detected else [detected] * len(texts[0]),
        )

    async def stream(self, request: Request) -> Response:
        """The same sentence by sentence, a line of JSON each, as soon as it is there.

        Alternatives are not looked at.
        """
        asked = await self._asked(request, TranslateRequest)
        _, passages, task = self._translating(asked.model_copy(update={"alternatives": 0}))
        stack = ExitStack()
        items = [sentence.source for sentence in passages.sentences]
        ticket = stack.enter_context(self._work.submitted(task, items, streamed=True))
        return _Stream(self._lines(passages, ticket.results), stack)

    async def alternatives(self, request: Request) -> messages.AlternativesAnswer:
        """Other translations of a sentence, which differ in the word after a prefix."""
        asked = await self._asked(request, messages.AlternativesRequest)
        model = self._models.chosen(asked)
        self._require_sentence(model, "q", asked.q)
        self._require_short("prefix", [asked.prefix])
        self._require_tokens(model, "prefix", asked.prefix)
        count, begun = asked.alternatives, asked.prefix.rstrip()
        # Some will go on within the last word of the prefix, which is not what was asked for.
        wide = {"n_best": 2 * count, "alternatives": True, "sample": False}
        task = Translating(model, model.translator.changed(wide), begun)
        (found,) = await self._computed(request, task, [asked.q])
        kept = [
            messages.Alternative(text=each.text, score=each.score)
            for each in found
            if not begun or each.text[len(begun) : len(begun) + 1].isspace()
        ]
        return messages.AlternativesAnswer(alternatives=kept[:count])

    async def explain(self, request: Request) -> Response:
        """What each head looked at in a sentence, and each logit in its content and position."""
        asked = await self._asked(request, messages.ExplainRequest)
        model = self._models.chosen(asked)
        self._require_sentence(model, "q", asked.q)
        self._require_short("translation", [asked.translation or ""])
        model.require_explained()
        task = Explaining(
            model,
            translation=asked.translation,
            stack=asked.stack,
            tokens=self._limits.explained_tokens,
        )
        (answer,) = await self._computed(request, task, [asked.q])
        return Response(answer, media_type="application/json")

    async def tables(
        self,
        request: Request,
        model: Annotated[
            str | None, Query(description="As /models has it; else the first.")
        ] = None,
        stack: Literal["encoder", "decoder"] = "encoder",
        layer: Annotated[int, Query(ge=1, description="From 1.")] = 1,
    ) -> Response:
        """The relative positions of a layer: the vector of each distance, for keys and values."""
        served = self._models.all[0] if model is None else self._models.named(model)
        settings = served.transformer.settings
        layers = settings.encoder_layers if stack == "encoder" else settings.decoder_layers
        if layer > layers:
            raise ArgumentError(f"layer must be from 1 to {layers}; got {layer}")
        if settings.max_distance is None:
            raise UnknownError(f"the model {served.name!r} has no relative positions")
        (answer,) = await self._computed(
            request, Tabulating(served, stack=stack, layer=layer), [""]
        )
        return Response(answer, media_type="application/json")

    async def languages(self) -> list[messages.Language]:
        """The languages, and what each can be translated to."""
        return self._models.languages()

    async def models(self) -> messages.ModelsAnswer:
        """The models, how they are built, and what may be asked."""
        return messages.ModelsAnswer(
            models=[model.described() for model in self._models.all],
            characters=self._limits.characters,
            explained_tokens=self._limits.explained_tokens,
        )

    async def health(self) -> messages.Status:
        """Whether the process lives."""
        return messages.Status(status="ok")

    async def ready(self) -> messages.Status:
        """Whether a request would be taken now."""
        self._work.refuse_if_busy()
        return messages.Status(status="ok")

    async def metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _asked(self, request: Request, kind: type[Message]) -> Message:
        self._work.refuse_if_busy()  # before anything is done for it
        return await read(request, kind)

    def _translating(self, asked: TranslateRequest) -> tuple[Served, Passages, Translating]:
        model = self._models.chosen(asked)
        self._require_short("q", asked.texts)
        passages = Passages.of(asked.texts, markup=asked.format == "html")
        _require_few("q", len(passages.sentences), self._limits.sentences, "sentences")
        for sentence in passages.sentences:
            name = "q" if isinstance(asked.q, str) else f"q[{sentence.text}]"
            self._require_tokens(model, name, sentence.source)
        n_best = asked.alternatives + 1
        beam = max(model.translator.settings.beam, n_best)
        settings = model.translator.changed({"n_best": n_best, "beam": beam})
        return model, passages, Translating(model, settings)

    def _require_short(self, name: str, texts: Sequence[str]) -> None:
        _require_few(name, sum(map(len, texts)), self._limits.characters, "characters")

    def _require_sentence(self, model: Served, name: str, text: str) -> None:
        if not text.strip():
            raise ArgumentError(f"{name} must be a sentence; got an empty one")
        self._require_short(name, [text])
        self._require_tokens(model, name, text)

    def _require_tokens(self, model: Served, name: str, text: str) -> None:
        # No character has more than four tokens, its bytes, or three and a sign for a sign.
        if 4 * len(text) < model.translator.max_source_tokens:
            return
        if refusal := model.translator.refusal(text):
            raise ArgumentError(f"a sentence of {name} {refusal.partition(' (')[0]}")

    async def _computed(self, request: Request, task: Task, items: Sequence[str]) -> list[Any]:
        """The results of a task, unless the client goes or it takes too long."""

        async def computed() -> list[Any]:
            with self._work.submitted(task, items) as ticket:
                return [await result for result in ticket.results]

        seconds = self._limits.seconds
        try:
            async with asyncio.timeout(seconds):
                return await _unless_gone(request, computed())
        except TimeoutError:
            raise LateError(
                f"there was no answer within {seconds:g} s: send less text at a time, or later"
            ) from None

    async def _lines(
        self, passages: Passages, results: Sequence["asyncio.Future[list[Translation]]"]
    ) -> AsyncIterator[bytes]:
        """A line for each sentence, and one for the end of each text."""
        left, text = deque(zip(passages.sentences, results, strict=True)), 0
        try:
            for text, tail in enumerate(passages.tails):
                while left and left[0][0].text == text:
                    sentence, result = left.popleft()
                    async with asyncio.timeout(self._limits.seconds):
                        best = (await result)[0]
                    yield _line(text, sentence.before, sentence.source, passages.written(best.text))
                yield _line(text, tail)
        except TimeoutError:
            yield _line(text, "", error=f"nothing came for {self._limits.seconds:g} s")
        except Exception as error:
            yield _line(text, "", error=told(error)[1])


def _require_few(name: str, size: int, limit: int, what: str) -> None:
    if size > limit:
        raise ArgumentError(
            f"{name} must have at most {limit:,} {what} in all; it has {size:,}: send it in parts"
        )


class _Stream(StreamingResponse):
    """An answer in lines; when it has ended, or its client is gone, what it holds is let go."""

    def __init__(self, lines: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(lines, media_type=LINES)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


def _line(
    text: int, before: str, source: str = "", translation: str = "", error: str | None = None
) -> bytes:
    line = messages.StreamedSentence(
        text=text, before=before, source=source, translation=translation, error=error
    )
    return line.model_dump_json(exclude_none=True).encode() + b"\n"


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, Result]) -> Result:
    """The answer; GoneError, and nothing is computed any more, if the client goes before it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise GoneError
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
