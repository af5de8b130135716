"""HTML as tags, which stay to the letter, and the text between them.

Not by Python's parser, which takes the square of the length for some markup (6 seconds for 20,000
characters of `<a <a <a`).
"""

import re
from collections import Counter
from html import unescape

# No `<` within a tag, so that one that never ends is known at the next.
_TAG = re.compile(
    r"""<!--|</?(?P<name>[a-zA-Z][^\s/<>]*+)(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+>|<[!?][^<>]*+>"""
)
# No character has such a number, and Python reads none of thousands of digits.
_NUMBER = re.compile(r"&#[0-9]{8,}+;?")
_STAYS = re.compile(r"""\stranslate\s*+=\s*+["']?no\b""", re.IGNORECASE)
# Their content is no text for readers; that of RAW is no markup either.
RAW = frozenset(("script", "style", "textarea"))
OPAQUE = RAW | {"code", "pre", "svg", "math", "noscript"}
VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)


def texts_between_tags(markup: str) -> list[tuple[str, bool]]:
    """Parts of the markup, in order; True: text, with its entities resolved. What is under
    `translate="no"` is no text.
    """
    parts: list[tuple[str, bool]] = []
    lower = markup.lower() if len(markup.lower()) == len(markup) else markup
    hidden: list[str] = []  # open elements, from the first whose content stays
    names: Counter[str] = Counter()  # theirs
    at = 0
    while (tag := _TAG.search(markup, at)) is not None:
        _add(parts, markup[at : tag.start()], is_text=not hidden)
        at = tag.end()
        name = (tag["name"] or "").lower()
        if tag[0] == "<!--":
            at = _after(markup, "-->", at)
        elif tag[0].startswith("</"):
            closed = not names[name]
            while not closed:
                last = hidden.pop()
                names[last] -= 1
                closed = last == name
        elif name in RAW:
            end = lower.find(f"</{name}", at)
            at = len(markup) if end < 0 else end
        elif _contains(name, tag[0]) and (hidden or name in OPAQUE or _STAYS.search(tag[0])):
            hidden.append(name)
            names[name] += 1
        _add(parts, markup[tag.start() : at], is_text=False)
    _add(parts, markup[at:], is_text=not hidden)
    return [
        (unescape(_NUMBER.sub("\ufffd", part)) if is_text else part, is_text)
        for part, is_text in parts
    ]


def _contains(name: str, tag: str) -> bool:
    """Whether what a tag begins has an end."""
    return bool(name) and name not in VOID and not tag.endswith("/>")


def _add(parts: list[tuple[str, bool]], part: str, *, is_text: bool) -> None:
    if part:
        before = parts.pop()[0] if parts and parts[-1][1] == is_text else ""
        parts.append((before + part, is_text))


def _after(markup: str, what: str, at: int) -> int:
    found = markup.find(what, at)
    return len(markup) if found < 0 else found + len(what)
