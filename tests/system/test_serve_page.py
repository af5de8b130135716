"""`edgewise serve`: its page in a browser, which must show what the API says, to everyone."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Request,
    Route,
    expect,
    sync_playwright,
)
from served import SOURCES, Server
from tiny_model import make_model, make_vocabulary

from edgewise.data.vocabulary import Vocabulary
from edgewise.interop.ctranslate2 import export

SHORT = {"max_length": 9}  # random weights find no end
NAME = "<img src=x onerror=alert(1)>"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1)//",
    "javascript:alert(1)",
    "\u202etxet denrut\u202c \u200b\u2066",
]
LONG_WORD = "abcdefghij" * 300
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}
Colours = Literal["light", "dark"]
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
TOLD_VIOLATIONS = """addEventListener("securitypolicyviolation",
    (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""
# Playwright would look every half a second.
IDLE = """new Promise((resolve, reject) => {
    const look = () => document.documentElement.dataset.state === "idle" && resolve();
    new MutationObserver(look).observe(document.documentElement, { attributes: true });
    setTimeout(() => reject(new Error("the page is still busy")), 20_000);
    look();
})"""
expect.set_options(timeout=20_000)


class Visit:
    """The page in a new tab, and the errors that occur there."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.server, self.wrong = server, list[str]()
        self.allowed: str | None = None  # in the browser's own words for a failed request
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("pageerror", lambda error: self.wrong.append(f"page: {error}"))
        self.page.on("console", lambda message: self._said(message.type, message.text))
        self.page.on("request", self._requested)
        self.page.on("dialog", self._dialog)
        self.page.goto(server.url)
        self.idle()

    def _said(self, kind: str, text: str) -> None:
        known = self.allowed and re.match(f"Failed to load resource: .*({self.allowed})", text)
        if kind == "error" and not known:
            self.wrong.append(f"console: {text}")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith(self.server.url + "/"):
            self.wrong.append(f"request: {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def close(self) -> None:
        self.page.evaluate("localStorage.clear()")
        self.page.close()
        assert self.wrong == []

    def idle(self) -> None:
        """Until nothing is asked for any more."""
        self.page.evaluate(IDLE)

    def find(self, selector: str, number: int | None = None) -> Locator:
        found = self.page.locator(selector)
        return found if number is None else found.nth(number)

    def text(self, selector: str) -> str:
        return self.find(selector).text_content() or ""

    def texts(self, selector: str) -> list[str]:
        return self.find(selector).all_text_contents()

    def write(self, text: str) -> None:
        self.find("#source").fill(text)
        self.idle()

    def choose(self, **options: str) -> None:
        """An option of each <select>, by its value."""
        for name, value in options.items():
            self.find(f"#{name.replace('_', '-')}").select_option(value)
            self.idle()

    def point(self, selector: str, number: int) -> None:
        self.page.mouse.move(0, 0)
        self.find(selector, number).hover()
        self.idle()

    def focused(self) -> str:
        """What has the focus: its id, else its first class, else its name."""
        found = self.page.evaluate(
            "(({ id, classList, localName }) => id || classList[0] || localName)"
            "(document.activeElement)"
        )
        assert isinstance(found, str)
        return found

    def resize(self, size: str) -> None:
        width, height = SIZES[size]
        self.page.set_viewport_size({"width": width, "height": height})

    def require_no_sideways_scrolling(self) -> None:
        """Neither of the page nor of a box whose text should wrap."""
        wider = self.page.evaluate(
            """[...document.querySelectorAll("html, #source, #translation, #error, #popup, pre")]
                .filter((box) => box.scrollWidth > box.clientWidth)
                .map(({ localName, id }) => `${localName}#${id}`)"""
        )
        assert wider == []


Visiting = Callable[..., Visit]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def server(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Three models: two from English to German, one of which has a name that is markup, and one
    without positions.
    """
    folder = tmp_path_factory.mktemp("models")
    plain = make_model(folder / "a", vocabulary, generation=SHORT)
    named = make_model(folder / NAME, vocabulary, seed=2, generation=SHORT, languages=("en", "de"))
    without = make_model(
        folder / "c", vocabulary, seed=3, generation=SHORT, max_distance=None, sinusoids=True
    )
    # Names end at an equals sign, unless they are those of folders.
    models = (f"en-de={plain}", str(named), f"fr-en={without}")
    with Server(*(value for model in models for value in ("--model", model))) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        reason = "the page cannot be looked at here: there is no chromium"
        print(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def usual(browser: Browser) -> BrowserContext:
    """A browser context that caches the files of the page after the first visit."""
    context = browser.new_context()
    context.add_init_script(TOLD_VIOLATIONS)
    return context


@pytest.fixture
def visiting(browser: Browser, usual: BrowserContext) -> Iterator[Visiting]:
    with ExitStack() as stack:

        def visit(server: Server, **options: Any) -> Visit:
            context = usual
            if options:
                context = browser.new_context(**options)
                context.add_init_script(TOLD_VIOLATIONS)
                stack.callback(context.close)
            visit = Visit(context, server)
            stack.callback(visit.close)
            return visit

        yield visit


@pytest.fixture
def visit(visiting: Visiting, server: Server) -> Visit:
    return visiting(server)


def explained(server: Server, text: str, stack: str = "cross", **body: str) -> dict[str, Any]:
    response = server.post("/explain", {"q": text, "stack": stack, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


def groups(words: list[int]) -> list[list[int]]:
    """The pieces of each word; those of no word are each alone."""
    numbered = [word if word >= 0 else -1 - i for i, word in enumerate(words)]
    by_word = groupby(range(len(words)), key=lambda i: numbered[i])
    return [list(pieces) for _, pieces in by_word]


def by_word(answer: dict[str, Any], layer: int, heads: list[int]) -> NDArray[np.float64]:
    """Weights in per cent: the mean of heads and of a query's pieces, the sum of a key's."""
    weights = np.mean([answer["layers"][layer][head]["weights"] for head in heads], axis=0)
    queries, keys = groups(answer["query_words"]), groups(answer["key_words"])
    return np.array(
        [[100 * weights[np.ix_(q, k)].sum(axis=1).mean() for k in keys] for q in queries]
    )


@pytest.fixture(scope="module")
def sentence(server: Server) -> str:
    """One that has words of several pieces, as its translation has, which has several words."""
    for source in SOURCES:
        answer = explained(server, source)
        pieces = [len(group) for group in groups(answer["query_words"])]
        if len(pieces) > 3 and max(pieces[1:]) > 1 and len(answer["keys"]) > len(source.split()):
            return source
    raise AssertionError("no translation has words of several pieces")


def word_of_pieces(answer: dict[str, Any], side: str = "query") -> int:
    """The number of the first word that has several."""
    return next(i for i, word in enumerate(groups(answer[f"{side}_words"])) if len(word) > 1)


def number(text: str) -> float:
    return float(text.replace("\u2212", "-").removesuffix(" %"))


def assert_shown(shown: list[str], expected: Any, digits: int) -> None:
    """Numbers as they are, rounded to so many digits."""
    found = [number(text) for text in shown]
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.5 * 10**-digits + 1e-6)


def test_typing_translates_and_lines_and_spaces_stay(visit: Visit, server: Server) -> None:
    visit.find("#source").press_sequentially(SOURCES[0])
    visit.idle()
    assert visit.text("#translation") == server.translated(SOURCES[0]) != ""
    assert visit.find(".sentence .word").count() == len(server.translated(SOURCES[0]).split())
    text = f"  {SOURCES[0]}  {SOURCES[1]}\n\n\t{SOURCES[2]}   \n"
    visit.write(text)
    assert visit.text("#translation") == server.translated(text)
    # A sentence in the midst changes, another goes.
    text = f"  {SOURCES[0]}  {SOURCES[3]}\n"
    visit.write(text)
    assert visit.text("#translation") == server.translated(text)
    visit.write("")
    assert visit.text("#translation") == ""


def test_a_newer_text_cancels_the_request_of_an_older_one(visit: Visit, server: Server) -> None:
    sent, failed = list[str](), list[Request]()

    def hold(route: Route) -> None:
        """The first is never answered."""
        sent.append(route.request.post_data_json["q"])
        if len(sent) > 1:
            route.continue_()

    visit.page.route("**/translate/stream", hold)
    visit.page.on("requestfailed", lambda request: failed.append(request))
    with visit.page.expect_request("**/translate/stream"):
        visit.find("#source").fill(SOURCES[0])
    visit.find("#source").press_sequentially(" " + SOURCES[1])
    visit.idle()
    assert visit.text("#translation") == server.translated(f"{SOURCES[0]} {SOURCES[1]}")
    assert sent[0] == SOURCES[0] == failed[0].post_data_json["q"]
    assert failed[0].failure == "net::ERR_ABORTED"
    assert visit.text("#error") == ""


def test_a_word_shows_the_source_words_it_looked_at_to_pointer_and_focus(
    visit: Visit, server: Server, sentence: str
) -> None:
    answer = explained(server, sentence)
    expected = by_word(answer, layer=0, heads=[0, 1, 2, 3])  # of two layers the last but one
    visit.write(sentence)
    assert visit.texts("#keys span") == [*sentence.split(), "\u27e8end\u27e9"]
    words = server.translated(sentence).split()
    assert visit.texts("#queries span") == [*words, "\u27e8end\u27e9"]
    assert set(visit.texts("#keys small")) == {""}
    for word in (0, word_of_pieces(answer)):
        visit.point(".word", word)
        assert_shown(visit.texts("#keys small"), expected[word], digits=0)
        most = sentence.split()[expected[word][:-1].argmax()]
        assert visit.text("#looks").startswith(f"{words[word]} looks at: ")
        assert f"{most} {round(expected[word][:-1].max())} %" in visit.text("#looks")
        assert visit.find("#lines path").count() == (expected[word] >= 2).sum()
        assert visit.texts(".query.lit span") == [words[word]]
    visit.page.mouse.move(0, 0)
    assert set(visit.texts("#keys small")) == {""} and visit.text("#looks") == ""
    visit.find(".word", 0).focus()
    for word in (0, 1, 2):
        assert_shown(visit.texts("#keys small"), expected[word], digits=0)
        visit.page.keyboard.press("ArrowRight")
    visit.find("#keys .key", 1).focus()
    assert_shown(visit.texts("#queries small"), expected[:, 1], digits=0)
    assert f"{sentence.split()[1]} is looked at by: " in visit.text("#looks")


def test_a_word_of_another_sentence_shows_that_sentence(visit: Visit, server: Server) -> None:
    visit.write(f"{SOURCES[0]}\n{SOURCES[1]}")
    assert visit.texts("#keys span")[:-1] == SOURCES[0].split()
    first = len(server.translated(SOURCES[0]).split())
    visit.point(".word", first)
    assert visit.texts("#keys span")[:-1] == SOURCES[1].split()
    expected = by_word(explained(server, SOURCES[1]), 0, [0, 1, 2, 3])
    assert_shown(visit.texts("#keys small"), expected[0], digits=0)


def test_stacks_layers_and_heads_can_be_chosen(visit: Visit, server: Server, sentence: str) -> None:
    visit.write(sentence)
    for stack in ("cross", "encoder", "decoder"):
        require_heads(visit, explained(server, sentence, stack), stack)


def require_heads(visit: Visit, answer: dict[str, Any], stack: str) -> None:
    """Each shows its own weights."""
    visit.choose(stack=stack)
    seen, query = set(), word_of_pieces(answer)
    for layer, head in ((0, 1), (1, 1), (1, 3)):
        expected = by_word(answer, layer, [head])
        visit.choose(layer=str(layer + 1), head=str(head + 1))
        visit.point(".query", query)
        assert_shown(visit.texts("#keys small"), expected[query], digits=0)
        seen.add(tuple(visit.texts("#keys small")))
    assert len(seen) == 3  # or there was nothing to see
    if stack == "decoder":
        word = answer["query_words"][groups(answer["query_words"])[query][0]]
        visit.point(".word", word)  # as in the translation, before which there is the start
        assert_shown(visit.texts("#keys small"), expected[query], digits=0)


def test_within_the_translation_nothing_looks_ahead(
    visit: Visit, server: Server, sentence: str
) -> None:
    answer = explained(server, sentence, "decoder")
    visit.write(sentence)
    visit.choose(stack="decoder", head="2")
    assert visit.texts("#keys span") == visit.texts("#queries span")
    for word in range(2):
        visit.point(".word", word)
        assert set(visit.texts("#keys small")[word + 2 :]) == {"0 %"}
        assert visit.find("#lines path").count() <= word + 2
        assert visit.texts("#keys small")[: word + 2] != ["0 %"] * (word + 2)
    visit.choose(piece="2")
    assert visit.find("#split tbody tr").count() == 3
    canvas = visit.find("#heatmaps canvas", 2)
    values = np.array(answer["layers"][0][1]["weights"])
    assert point_at_cell(visit, canvas, 1, 2) == ""
    assert point_at_cell(visit, canvas, 2, 1).endswith(f": {values[2, 1]:.3f}")


def test_logits_are_split_into_content_and_position(
    visit: Visit, server: Server, sentence: str
) -> None:
    answer = explained(server, sentence, "encoder")
    visit.write(sentence)
    visit.choose(stack="encoder", layer="2", head="3", piece="4")
    head = answer["layers"][1][2]
    content, position, weights = (
        np.array(head[name])[4] for name in ("content", "position", "weights")
    )
    assert np.abs(position).max() > 0.005  # or there is nothing to see
    assert visit.texts("#split thead th") == ["Looked at", "Content", "Position", "Logit", "Weight"]
    assert visit.find("#split tbody tr").count() == len(answer["keys"])
    columns = ((content, 2), (position, 2), (content + position, 2), (weights, 3))
    for column, (values, digits) in enumerate(columns, 1):
        shown = visit.texts(f"#split tbody td:nth-child({column + 1})")
        assert_shown(shown, values, digits)
    assert visit.texts("#split tbody th") == list(map(piece_text, answer["keys"]))
    assert "Head 3." in visit.text("#split-note")
    # A word that is looked from chooses its first piece.
    word = word_of_pieces(answer)
    visit.find(".query", word).focus()
    assert visit.find("#piece").input_value() == str(groups(answer["query_words"])[word][0])
    # In attention to the source there are no positions.
    answer = explained(server, sentence)
    visit.choose(stack="cross", head="2", piece="1")
    assert "There are no positions in attention to the source." in visit.text("#split-note")
    assert visit.texts("#split thead th") == ["Looked at", "Content", "Logit", "Weight"]
    head = answer["layers"][1][1]
    assert_shown(visit.texts("#split tbody td:nth-child(3)"), head["content"][1], digits=2)
    assert_shown(visit.texts("#split tbody td:nth-child(4)"), head["weights"][1], digits=3)
    assert not visit.find("#heatmaps figure", 1).is_visible()


def piece_text(piece: str) -> str:
    """As the page shows it: a space is seen, a byte that is a letter is that letter."""
    if byte := re.fullmatch("<0x(..)>", piece):
        code = int(byte[1], 16)
        return chr(code) if 0x20 < code < 0x7F else piece
    ends = {"<s>": "\u27e8start\u27e9", "</s>": "\u27e8end\u27e9"}
    return ends.get(piece, piece.replace("\u2581", "\u2423"))


def grid(canvas: Locator) -> tuple[float, float, float, float]:
    """Of a heat map: left, top, width and height of a cell, in pixels of the page."""
    left, top, width, height = map(float, (canvas.get_attribute("data-grid") or "").split(","))
    return left, top, width, height


def point_at_cell(visit: Visit, canvas: Locator, row: int, column: int) -> str:
    """What is said of it."""
    left, top, width, height = grid(canvas)
    # A point that is well within, and not in the middle.
    x, y = left + (column + 0.2) * width, top + (row + 0.8) * height
    visit.page.mouse.move(0, 0)
    canvas.hover(position={"x": x, "y": y})
    return canvas.locator("xpath=ancestor::figure").locator(".readout").text_content() or ""


def colours(canvas: Locator, rows: int, columns: int) -> NDArray[np.float64]:
    """Of the middle of each cell: red, green, blue."""
    left, top, width, height = grid(canvas)
    points = [
        [left + (column + 0.5) * width, top + (row + 0.5) * height]
        for row in range(rows)
        for column in range(columns)
    ]
    found = canvas.evaluate(
        """(canvas, points) => {
            const context = canvas.getContext("2d");
            const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
            const at = (place) => Math.floor(devicePixelRatio * place);
            return points.map(([x, y]) => {
                const start = 4 * (canvas.width * at(y) + at(x));
                return [...data.slice(start, start + 3)];
            });
        }""",
        points,
    )
    return np.array(found, dtype=float).reshape(rows, columns, 3)


def assert_pictured(canvas: Locator, values: Any, *, diverging: bool) -> None:
    """The colour of each cell is as far between the style's as its value."""
    values = np.array(values)
    names = ["--none", "--cold", "--warm", "--much"]
    style = canvas.evaluate(
        "(canvas, names) => names.map((name) => getComputedStyle(canvas).getPropertyValue(name))",
        names,
    )
    none, cold, warm, much = (
        np.array([float(channel) for channel in re.findall(r"[\d.]+", colour)][:3])
        for colour in style
    )
    share = np.abs(values) / np.abs(values).max() if diverging else values
    to = np.where((values < 0)[..., None], cold, warm) if diverging else much
    expected = none + (to - none) * share[..., None]
    found = colours(canvas, *values.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1)
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 3


def test_heat_maps_are_the_numbers_of_the_head_to_pointer_and_keys(
    visiting: Visiting, server: Server, sentence: str
) -> None:
    visit = visiting(server, device_scale_factor=2)
    answer = explained(server, sentence, "encoder")
    visit.write(sentence)
    visit.choose(stack="encoder", head="4")
    head, pieces = answer["layers"][0][3], list(map(piece_text, answer["keys"]))
    for place, name in enumerate(("content", "position", "weights")):
        canvas, values = visit.find("#heatmaps canvas", place), np.array(head[name])
        assert_pictured(canvas, values, diverging=name != "weights")
        for row, column in ((2, 5), (len(values) - 1, 0)):
            pair, shown = point_at_cell(visit, canvas, row, column).rsplit(": ", 1)
            assert pair == f"{pieces[row]} \u2192 {pieces[column]}"
            assert_shown([shown], [values[row, column]], digits=3 if name == "weights" else 2)
    visit.find("#theme").click()
    assert_pictured(visit.find("#heatmaps canvas", 0), head["content"], diverging=True)
    visit.page.mouse.move(0, 0)
    visit.find("#heatmaps canvas", 2).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        visit.page.keyboard.press(key)
    shown = visit.find("#heatmaps .readout", 2).text_content() or ""
    assert shown.startswith(f"{pieces[0]} \u2192 {pieces[1]}: ")
    assert_shown([shown.rsplit(" ", 1)[1]], [head["weights"][0][1]], digits=3)


def test_tables_of_relative_positions_are_pictured(visit: Visit, server: Server) -> None:
    for stack, distances in (("encoder", 11), ("decoder", 6)):
        visit.choose(tables_stack=stack, tables_layer="2", tables_head="3")
        query = {"stack": stack, "layer": 2, "model": "en-de"}
        answer = server.client.get("/tables", params=query).json()
        for place, name in enumerate(("keys", "values")):
            # A row a feature; a decoder has no use for what comes later.
            values = np.array(answer[name])[2].T[:, :distances]
            canvas = visit.find("#tables canvas", place)
            assert_pictured(canvas, values, diverging=True)
            said = point_at_cell(visit, canvas, 6, 3)
            assert said.startswith("distance \u22122, feature 7: ")
            assert_shown([said.rsplit(" ", 1)[1]], [values[6, 3]], digits=2)


def test_a_model_without_positions_says_so(visit: Visit, server: Server) -> None:
    visit.choose(pair="2")
    visit.write(SOURCES[0])
    assert visit.text("#tables-note") == "This model has no relative positions."
    assert not visit.find("#tables").is_visible()
    assert not visit.find("#tables-controls").is_visible()
    assert "no relative positions" in visit.text("#about")
    visit.choose(stack="encoder")
    assert "This model has no relative positions in its keys." in visit.text("#split-note")
    expected = server.translated(SOURCES[0], source="fr", target="en")
    assert visit.text("#translation") == expected
    visit.choose(pair="0")
    assert visit.find("#tables canvas", 0).is_visible()
    assert "distance" in visit.text("#tables-note")


def test_a_model_that_another_engine_runs_is_translated_with_and_not_explained(
    visiting: Visiting, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", vocabulary, generation=SHORT, tables="layer")
    export(model, tmp_path / "ct2")
    with Server("--engine", "ctranslate2", "--model", f"en-de={tmp_path / 'ct2'}") as server:
        visit = visiting(server)
        visit.write(SOURCES[0])
        assert visit.text("#translation") == server.translated(SOURCES[0])
        told = "Another engine runs this model, which does not show its "
        assert visit.text("#attention-note") == f"{told}attention."
        assert visit.text("#tables-note") == f"{told}tables."
        assert not visit.find("#tables").is_visible()
        visit.choose(stack="encoder")
        visit.find("#translation button", 0).click()
        visit.idle()


def alternatives(server: Server, sentence: str, word: int) -> list[str]:
    prefix = " ".join(server.translated(sentence).split()[:word])
    answer = server.post("/alternatives", {"q": sentence, "prefix": prefix, "alternatives": 5})
    found = [each["text"] for each in answer.json()["alternatives"]]
    assert len(set(found)) > 2
    return found


def test_a_click_on_a_word_offers_others(visit: Visit, server: Server, sentence: str) -> None:
    expected = alternatives(server, sentence, 1)
    visit.write(f"{SOURCES[1]}\n{sentence}\n{SOURCES[2]}")
    number = len(server.translated(SOURCES[1]).split()) + 1
    word = visit.find(".word", number)
    word.click()
    visit.idle()
    assert word.get_attribute("aria-expanded") == "true"
    assert visit.page.get_by_role("listbox").is_visible()
    assert visit.texts("#alternatives [role=option] span") == expected
    mine = visit.find("#alternatives [aria-selected=true] span").all_text_contents()
    assert mine == [server.translated(sentence)]
    for _ in range(2):
        visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Enter")
    visit.idle()
    assert not visit.find("#popup").is_visible()
    others = [server.translated(SOURCES[i]) for i in (1, 2)]
    assert visit.text("#translation") == f"{others[0]}\n{expected[2]}\n{others[1]}"
    assert visit.text("#status") == visit.text("#translation")
    # It is explained in place of the model's own, and its word has the focus.
    assert visit.texts("#queries span")[:-1] == expected[2].split()
    shares = by_word(explained(server, sentence, translation=expected[2]), 0, [0, 1, 2, 3])
    assert_shown(visit.texts("#keys small"), shares[1], digits=0)
    focused = visit.find(".word:focus")
    assert focused.get_attribute("data-word") == "1"
    assert focused.text_content() == expected[2].split()[1]
    # What was chosen stays while the text around it changes.
    visit.write(f"{sentence}\n{SOURCES[1]}")
    assert visit.text("#translation") == f"{expected[2]}\n{others[0]}"


def test_an_alternative_can_be_clicked_and_the_list_closed_without_one(
    visit: Visit, server: Server, sentence: str
) -> None:
    before, expected = server.translated(sentence), alternatives(server, sentence, 0)
    visit.write(sentence)
    word = visit.find(".word", 0)
    for close in ("Escape", "Tab"):
        word.focus()
        visit.page.keyboard.press("Enter")
        visit.idle()
        visit.page.keyboard.press("End")
        visit.page.keyboard.press(close)
        expect(visit.find("#popup")).to_be_hidden()
        expect(word).to_be_focused()
        expect(word).to_have_attribute("aria-expanded", "false")
        assert visit.text("#translation") == before
    visit.find(".word", 1).click()
    visit.idle()
    visit.find("h1").click()
    expect(visit.find("#popup")).to_be_hidden()
    word.click()
    visit.idle()
    visit.find("#alternatives [role=option]", 1).click()
    visit.idle()
    assert visit.text("#translation") == expected[1] != before


TRICKY = """He said: "don't $HOME `id` $(id) \\n" & 100 % <b>; it's 'so'! \u00dcber \u4f60\u597d

\tA\u00a0line. \U0001f600\u202e"""


def test_the_command_that_is_shown_gives_the_same(visit: Visit) -> None:
    if shutil.which("curl") is None:
        reason = "the command cannot be tried here: there is no curl"
        print(reason)
        pytest.skip(reason)
    seen = set()
    for pair in ("0", "1", "2"):
        visit.choose(pair=pair)
        visit.write(TRICKY)
        command = visit.text("#curl")
        assert "\u202e" not in command and "\u00a0" not in command
        done = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            env={**os.environ, "no_proxy": "*", "HOME": "/nowhere"},
            check=True,
        )
        assert json.loads(done.stdout)["translatedText"] == visit.text("#translation")
        seen.add(visit.text("#translation"))
    assert len(seen) == 3


def test_buttons_copy(visiting: Visiting, server: Server) -> None:
    visit = visiting(server, permissions=["clipboard-read", "clipboard-write"])
    assert visit.find("#copy-translation").is_disabled()
    visit.write(SOURCES[0])
    for button, box in (("#copy-translation", "#translation"), ("#copy-curl", "#curl")):
        visit.find(button).click()
        expect(visit.find(button)).to_have_text("Copied")
        assert visit.page.evaluate("navigator.clipboard.readText()") == visit.text(box)


def elements(visit: Visit) -> dict[str, int]:
    """Of kinds that can do harm: how many there are."""
    names = ("script", "img", "iframe", "object", "embed", "a", "style", "link", "form")
    return {name: visit.find(name).count() for name in names}


def test_hostile_texts_are_texts(visit: Visit, server: Server) -> None:
    before, text = elements(visit), "\n".join(HOSTILE)
    visit.write(text)
    assert visit.text("#translation") == server.translated(text)
    assert visit.text("#error") == ""
    for number, line in enumerate(HOSTILE):
        visit.resize("phone" if number % 2 else "desktop")
        visit.point(f".sentence:nth-child({number + 1}) .word", 0)
        assert visit.texts("#keys span") == [*line.split(), "\u27e8end\u27e9"]
        assert visit.text("#looks") != ""
        visit.require_no_sideways_scrolling()
    visit.choose(stack="encoder")
    visit.find(".word", 0).click()
    visit.idle()
    assert visit.find("#alternatives").is_visible()
    visit.require_no_sideways_scrolling()
    assert elements(visit) == before


def test_a_word_that_does_not_fit_widens_nothing(visit: Visit, server: Server) -> None:
    visit.allowed = "400"
    visit.write(LONG_WORD)  # is refused, as it has too many tokens
    assert "at most 1,024 are translated" in visit.text("#error")
    visit.write(LONG_WORD[:900])  # is translated, and too long to be explained
    assert visit.text("#translation") == server.translated(LONG_WORD[:900])
    assert visit.text("#error") == ""
    most = server.client.get("/models").json()["explained_tokens"]
    assert f"at most {most} tokens to be explained" in visit.text("#attention-note")
    visit.write(LONG_WORD[:most])
    assert visit.texts("#keys span") == [LONG_WORD[:most], "\u27e8end\u27e9"]
    visit.page.evaluate("(text) => { document.querySelector('#source').value = text; }", LONG_WORD)
    for size in SIZES:
        visit.resize(size)
        visit.point(".word", 0)
        visit.require_no_sideways_scrolling()


def test_a_model_whose_name_is_markup_can_be_used(visit: Visit, server: Server) -> None:
    before = elements(visit)
    assert visit.texts("#pair option") == [
        "English \u2192 German (en-de)",
        f"English \u2192 German ({NAME})",
        "French \u2192 English",
    ]
    visit.write(SOURCES[0])
    visit.choose(pair="1")
    assert visit.text("#translation") == server.translated(SOURCES[0], model=NAME)
    assert NAME in visit.text("#curl")
    values = server.client.get("/tables", params={"model": NAME}).json()["keys"][0]
    assert_pictured(visit.find("#tables canvas", 0), np.array(values).T, diverging=True)
    assert elements(visit) == before


def fulfil(body: str, route: Route) -> None:
    route.fulfill(body=body)


def test_hostile_answers_and_errors_are_texts(visit: Visit, server: Server) -> None:
    """As a model may give them whose vocabulary has them: here they are put into its answers."""
    before, words = elements(visit), [text for text in HOSTILE if " " not in text]
    answer = explained(server, "the dog", translation="der Hund")
    pieces = [
        HOSTILE[i % len(HOSTILE)] for i in range(max(map(len, (answer["queries"], answer["keys"]))))
    ]
    answer |= {side: pieces[: len(answer[side])] for side in ("queries", "keys")}
    lines = [
        {"text": 0, "before": before, "source": source, "translation": " ".join(translation)}
        for before, source, translation in [("", "the dog", words), (" " + words[0], "", [])]
    ]
    others = [" ".join([words[i], *HOSTILE, LONG_WORD]) for i in range(2)]
    answers = {
        "translate/stream": "\n".join(map(json.dumps, lines)) + "\n",
        "explain": json.dumps(answer),
        "alternatives": json.dumps({"alternatives": [{"text": t, "score": 0} for t in others]}),
    }
    for path, body in answers.items():
        visit.page.route(f"**/{path}", partial(fulfil, body))
    visit.write("the dog")
    assert visit.text("#translation") == f"{' '.join(words)} {words[0]}"
    assert visit.texts("#split tbody th") == answer["keys"]
    visit.point(".word", 0)
    assert visit.text("#looks") != ""
    visit.find(".word", 0).click()
    visit.idle()
    assert visit.texts("#alternatives span") == others
    visit.require_no_sideways_scrolling()
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Enter")
    visit.idle()
    assert visit.text("#translation") == f"{others[1]} {words[0]}"
    assert elements(visit) == before
    visit.require_no_sideways_scrolling()
    visit.allowed, said = "400", " ".join([*HOSTILE, LONG_WORD])
    paths = re.compile("/(translate/stream|tables|explain|alternatives)")
    refused = json.dumps({"error": said})
    visit.page.route(paths, lambda route: route.fulfill(status=400, body=refused))
    visit.write("the cat")
    visit.choose(tables_layer="2")
    assert visit.texts("#error p") == [said, said]
    assert elements(visit) == before
    visit.require_no_sideways_scrolling()


def test_everything_can_be_done_with_keys(visit: Visit, server: Server, sentence: str) -> None:
    keyboard = visit.page.keyboard

    def tab(until: str) -> list[str]:
        passed = list[str]()
        while not passed or passed[-1] != until:
            keyboard.press("Tab")
            passed.append(visit.focused())
            assert len(passed) < 50, passed
        return passed

    assert tab("example") == ["skip", "pair", "theme", "source", "example"]
    keyboard.press("Enter")
    visit.idle()
    assert visit.focused() == "source" and visit.text("#translation") != ""
    keyboard.press("Control+a")
    keyboard.insert_text(sentence)
    visit.idle()
    assert tab("word") == ["example", "word"]
    keyboard.press("ArrowRight")
    assert visit.find(".word:focus").get_attribute("data-word") == "1"
    keyboard.press("Space")
    visit.idle()
    keyboard.press("ArrowDown")
    keyboard.press("Space")
    visit.idle()
    assert visit.text("#translation") == alternatives(server, sentence, 1)[1]
    assert visit.find(".word:focus").get_attribute("data-word") == "1"
    assert tab("stack") == ["copy-translation", "stack"]
    keyboard.press("w")  # "within the source"
    visit.idle()
    assert tab("head") == ["layer", "head"]
    keyboard.press("2")
    assert tab("key") == ["key"]
    keyboard.press("End")
    assert visit.text(".key.lit span") == "\u27e8end\u27e9"
    assert tab("query") == ["query"]
    keyboard.press("ArrowDown")
    assert visit.find(".query:focus").get_attribute("data-row") == "1"
    chosen = visit.find("#piece").input_value()
    assert chosen == str(groups(explained(server, sentence, "encoder")["query_words"])[1][0])
    assert tab("split-box") == ["piece", "split-box"]
    assert tab("tables-stack") == ["canvas"] * 3 + ["tables-stack"]
    assert tab("copy-curl") == ["tables-layer", "tables-head", "canvas", "canvas", "copy-curl"]
    assert tab("a") == ["pre", "a"]
    # The focus is seen wherever it is.
    visit.find(".skip").focus()
    box = visit.find(".skip").bounding_box()
    assert box is not None and box["x"] >= 0 and box["y"] >= 0
    keyboard.press("Enter")
    assert visit.focused() == "source"


def background(visit: Visit) -> str:
    found = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert isinstance(found, str)
    return found


LIGHT, DARK = "rgb(246, 246, 243)", "rgb(20, 23, 26)"


def test_colours_are_the_systems_until_the_button_says_otherwise(visit: Visit) -> None:
    button = visit.find("#theme")

    def require(colour: str) -> None:
        expect(button).to_have_attribute("aria-pressed", str(colour == DARK).lower())
        assert background(visit) == colour

    for scheme, colour in {"dark": DARK, "light": LIGHT}.items():
        visit.page.emulate_media(color_scheme=scheme)
        require(colour)
    button.click()
    require(DARK)
    visit.page.reload()
    visit.idle()
    require(DARK)
    visit.page.emulate_media(color_scheme="dark")
    button.click()
    require(LIGHT)
    visit.page.reload()
    visit.idle()
    require(LIGHT)


def require_accessible(visit: Visit) -> None:
    found = Axe().run(visit.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    visiting: Visiting, server: Server, sentence: str, scheme: Colours
) -> None:
    visit = visiting(server, color_scheme=scheme)
    visit.write(f"{sentence}\n{SOURCES[1]}")
    for size in SIZES:
        visit.resize(size)
        visit.point(".word", 1)
        require_accessible(visit)
    visit.write("x" * 20_001)
    assert visit.text("#error") != ""
    visit.find(".word", 1).click()
    visit.idle()
    assert visit.find("#alternatives").is_visible()
    require_accessible(visit)


def test_a_narrow_page_does_not_scroll_sideways(
    visiting: Visiting, server: Server, sentence: str
) -> None:
    visit = visiting(server, viewport={"width": 360, "height": 740}, has_touch=True)
    visit.require_no_sideways_scrolling()
    long = max(SOURCES, key=len)
    visit.write(f"{sentence} {long}")
    for stack in ("cross", "encoder", "decoder"):
        visit.choose(stack=stack)
        visit.point(".word", 0)
        visit.require_no_sideways_scrolling()
    visit.find(".word").last.tap()
    visit.idle()
    box = visit.find("#popup").bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360
    visit.require_no_sideways_scrolling()


def test_a_text_that_is_too_long_is_refused_until_it_is_shorter(
    visit: Visit, server: Server
) -> None:
    limit = server.client.get("/models").json()["characters"]
    visit.write("x" * (limit + 1))
    assert visit.text("#error") == "A text may have at most 20,000 characters."
    assert visit.text("#count") == "20,001 / 20,000"
    visit.write(SOURCES[0])
    assert visit.text("#error") == ""
    assert visit.text("#translation") == server.translated(SOURCES[0])
    visit.write("\U0001f600" * 3)  # one character each, here as there
    assert visit.text("#count") == "3 / 20,000"
    visit.allowed = "400"
    visit.write("x" * limit)
    assert visit.text("#error") == "a sentence of q has 20,001 tokens; at most 1,024 are translated"
    visit.write("")
    assert visit.text("#error") == visit.text("#translation") == ""


def test_a_busy_server_is_asked_again_and_one_that_is_gone_is_told(
    visiting: Visiting, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    lengths = {"min_length": 400, "max_length": 400}
    folder = make_model(tmp_path / "m", vocabulary, generation=lengths)
    options = ("--max-waiting", "1", "--batch-tokens", "1")  # a sentence at a time
    with Server("--model", f"en-de={folder}", *options) as server:
        visit = visiting(server)
        visit.allowed = "400|503"  # such long translations are not explained
        # Many: what is not computed when the stream is closed never is.
        body = {"q": "\n".join(SOURCES[:40]), "source": "en", "target": "de"}
        with server.client.stream("POST", "/translate/stream", json=body) as stream:
            assert stream.status_code == 200
            visit.find("#source").fill("the dog")
            expect(visit.find("#error")).to_contain_text("Trying again in")
            busy = r"the queue is full \(1 requests\): .* s\. Trying again in \d+ s\."
            assert re.fullmatch(busy, visit.text("#error"))
        visit.idle()
        assert visit.text("#error") == ""
        assert visit.text("#translation") == server.translated("the dog")
        # In the midst of a stream, and before one.
        visit.allowed = "400|503|net::ERR_"
        visit.find("#source").fill("\n".join(SOURCES[:12]))
        visit.find(".sentence:not(.stale)").first.wait_for()
        server.process.kill()
        for text in (None, "the cat"):
            if text:
                visit.write(text)
            visit.idle()
            assert visit.text("#error") == "The server does not answer."
            assert visit.text("#translation") == ""


def test_a_translation_is_announced_once_and_whole(visit: Visit, server: Server) -> None:
    live = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log]"
    visit.page.evaluate(
        """(live) => {
            globalThis.announced = [];
            const note = ({ target }) => {
                const region = (target.closest ?? target.parentElement.closest).call(
                    target.closest ? target : target.parentElement, live);
                announced.push([region.id, region.textContent]);
            };
            const observer = new MutationObserver((changes) => changes.forEach(note));
            for (const region of document.querySelectorAll(live)) {
                observer.observe(region, { childList: true, characterData: true, subtree: true });
            }
        }""",
        live,
    )
    text = "\n".join(SOURCES[:3])
    visit.write(text)
    announced = visit.page.evaluate("announced")
    expected = server.translated(text)
    assert [each for each in announced if each[1]] == [["status", expected]]
    assert visit.find(f"#translation:is({live}), #translation :is({live})").count() == 0
    assert visit.find("#translation").get_attribute("aria-busy") == "false"
    assert [said for said in visit.texts(live) if said] == [expected]


def test_texts_are_marked_with_their_languages(visit: Visit, sentence: str) -> None:
    languages = {0: ("en", "de"), 2: ("fr", "en")}
    visit.write(sentence)
    for pair, (source, target) in languages.items():
        visit.choose(pair=str(pair))
        assert visit.find("#source").get_attribute("lang") == source
        assert visit.find("#translation").get_attribute("lang") == target
        for stack, sides in {
            "cross": (source, target),
            "encoder": (source, source),
            "decoder": (target, target),
        }.items():
            visit.choose(stack=stack)
            found = tuple(
                visit.find(f"#{side}").get_attribute("lang") for side in ("keys", "queries")
            )
            assert found == sides
        visit.find(".word", 0).click()
        visit.idle()
        assert visit.find("#alternatives li", 0).get_attribute("lang") == target
        visit.page.keyboard.press("Escape")
    assert visit.find("html").get_attribute("lang") == "en"
