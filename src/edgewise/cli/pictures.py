"""Pictures of attention: logits in their content and position parts, tables, weight by distance."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from edgewise.attention import RelationAttention
from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding import Translator
from edgewise.decoding.explanation import Attention, Explanation, explain
from edgewise.decoding.native import NativeEngine
from edgewise.errors import EdgewiseError, SettingError
from edgewise.model.transformer import Transformer

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Stack = Literal["encoder", "decoder"]
Tables = Literal["head", "layer", "shared"]
Figures = Iterator[tuple[str, "matplotlib.figure.Figure"]]

MOST_TOKENS = 100
SMALL, DOTS_PER_INCH = 7, 100


def require_matplotlib() -> None:
    """Raise unless pictures can be drawn."""
    if find_spec("matplotlib") is None:
        raise EdgewiseError("pictures need matplotlib: pip install 'edgewise[plots]'")


def require_readable(name: str, tokens: Sequence[int]) -> None:
    """Raise unless a picture with a row for each of these tokens can be read."""
    if len(tokens) > MOST_TOKENS:
        raise SettingError(
            f"{name} must have at most {MOST_TOKENS} tokens, for pictures that can be read; "
            f"got {len(tokens)}: give a shorter sentence"
        )


def picture_attention(translator: Translator, text: str, folder: Path) -> Path:
    """Draw the encoder's self-attention in each layer and head; the folder of the pictures."""
    require_matplotlib()
    tokens = [*translator.vocabulary.encode([text])[0], END]
    require_readable("the text", tokens)
    assert isinstance(translator.engine, NativeEngine)  # what `Translator.load` makes
    encoder = explain(translator.engine.models[0], tokens, [BEGIN]).encoder
    folder.mkdir(parents=True, exist_ok=True)
    pieces = shown(translator.vocabulary, tokens)
    save(attention_figures("encoder", encoder, pieces), folder)
    return folder


def figures(explanation: Explanation, model: Transformer, vocabulary: Tokenizer) -> Figures:
    """All pictures of an explanation: the name of each, and what is to be in it."""
    source, target = (shown(vocabulary, side) for side in (explanation.source, explanation.target))
    yield from attention_figures("encoder", explanation.encoder, source)
    yield from attention_figures("decoder", explanation.decoder, target)
    yield from cross_figures(explanation.cross, source, target)
    yield from table_figures("encoder", model.encoder, model.settings.tables)
    yield from table_figures("decoder", model.decoder, model.settings.tables)
    yield "distance.png", distance_figure(explanation)


def save(
    figures: Figures, folder: Path, progress: Callable[[str], None] = lambda name: None
) -> list[str]:
    """Draw one figure after the other; the names of the files. `progress` is told each before."""
    import matplotlib

    names = []
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        # What the font lacks is drawn as a box; a warning would come for each such character.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        for name, figure in figures:
            progress(name)
            figure.savefig(folder / name, dpi=DOTS_PER_INCH)
            names.append(name)
    return names


def attention_figures(stack: Stack, layers: Sequence[Attention], pieces: Sequence[str]) -> Figures:
    """For each layer a row a head: content logits, position logits if there are any, weights."""
    for number, attention in enumerate(layers, start=1):
        columns = {"content logits": attention.content}
        if attention.relation is not None:
            columns["position logits"] = attention.relation
        columns["weights"] = attention.weights
        heads, n, _ = attention.weights.shape
        # What the decoder may not look at is left out.
        ahead = torch.ones(n, n, dtype=torch.bool).triu(1) & (stack == "decoder")
        title = f"{stack.capitalize()} layer {number}: rows attend to columns"
        grid = token_grid(title, heads, len(columns), pieces, pieces)
        for head in range(heads):
            for column, (name, values) in enumerate(columns.items()):
                values = values[head].masked_fill(ahead, math.nan)
                bound = None if name == "weights" else values.nan_to_num().abs().max().item()
                axis = grid.heat_map(head, column, f"head {head + 1}: {name}", values, bound)
                label_tokens(axis, pieces, pieces)
        yield f"{stack}-layer-{number}.png", grid.figure


def cross_figures(
    layers: Sequence[Attention], source: Sequence[str], target: Sequence[str]
) -> Figures:
    """For each layer a panel a head: the weights."""
    for number, attention in enumerate(layers, start=1):
        heads = len(attention.weights)
        columns = math.ceil(math.sqrt(heads))
        title = f"Decoder layer {number}: target (rows) attends to source (columns)"
        grid = token_grid(title, math.ceil(heads / columns), columns, target, source)
        for head, weights in enumerate(attention.weights):
            axis = grid.heat_map(*divmod(head, columns), f"head {head + 1}: weights", weights)
            label_tokens(axis, target, source)
        yield f"cross-layer-{number}.png", grid.figure


def table_figures(stack: Stack, layers: nn.ModuleList, tables: Tables) -> Figures:
    """The tables of keys and values, each once; no picture if there are none."""
    rows = table_rows(layers, tables)
    if not rows:
        return
    k = len(rows[0][0][1]) // 2
    # What the decoder has for distances above 0 is never used.
    labels = k + 1 if stack == "decoder" else 2 * k + 1
    bound = max(table[:labels].abs().max().item() for row in rows for _, table in row)
    width = min(3.2, max(1.2, 0.09 * labels))
    title = f"{stack.capitalize()}: edge vectors (features, down) of each distance (across)"
    grid = Grid(title, len(rows), len(rows[0]), width=width, height=1.8, left=0.35, below=0.35)
    for i, row in enumerate(rows):
        for j, (name, table) in enumerate(row):
            grid.heat_map(i, j, name, table[:labels].T, bound, first=-k)
    yield f"tables-{stack}.png", grid.figure


def table_rows(
    layers: nn.ModuleList, tables: Tables
) -> list[list[tuple[str, Float[Tensor, "n_label d_head"]]]]:
    """Tables with their names: a row for each head if heads have their own, else for each layer."""
    attentions = [module for module in layers.modules() if isinstance(module, RelationAttention)]
    by_layer = {f"layer {number}": layer for number, layer in enumerate(attentions, start=1)}
    if tables == "shared":
        by_layer = {"all layers": attentions[0]}
    rows = [
        [
            (f"{name}: {kind}", table.detach().float().cpu())
            for kind, table in (("keys", layer.key_table), ("values", layer.value_table))
            if table is not None
        ]
        for name, layer in by_layer.items()
    ]
    if tables == "head":
        named = [each for row in rows for each in row]
        rows = [
            [(f"head {head + 1}, {name}", table[head]) for name, table in named]
            for head in range(attentions[0].heads)
        ]
    return [row for row in rows if row]


def distance_figure(explanation: Explanation) -> "matplotlib.figure.Figure":
    """For each layer a row a head: the mean weight by distance."""
    k, heads = explanation.max_distance, len(explanation.encoder[0].weights)
    stacks = explanation.by_distance()
    title = "Mean weight on the key at each distance from the query"
    if any(found.beyond is not None for layers in stacks.values() for found in layers):
        title += f", and on all keys beyond k = {k} (dashed)"
    height = max(0.8, 0.2 * heads)
    rows = max(map(len, stacks.values()))
    grid = Grid(title, rows, len(stacks), width=5.0, height=height, left=1.2, below=0.25)
    for column, (stack, layers) in enumerate(stacks.items()):
        for row, found in enumerate(layers):
            name, first, last = f"{stack} layer {row + 1}", found.distances[0], found.distances[-1]
            axis = grid.heat_map(row, column, name, found.weights, first=first)
            labels = [f"head {head + 1}" for head in range(heads)]
            if k is not None and found.beyond is not None:
                shares = found.beyond.tolist()
                labels = [f"{a}, beyond {b:.0%}" for a, b in zip(labels, shares, strict=True)]
                for edge in (-k - 0.5, k + 0.5):
                    if first <= edge <= last:
                        axis.axvline(edge, color="0.3", linewidth=1, linestyle="dashed")
            axis.set_yticks(range(heads), labels)
    return grid.figure


class Grid:
    """A figure of equal panels with a colour bar each; sizes in inches, so that nothing moves."""

    TOP, TITLE, BAR, RIGHT = 0.4, 0.3, 0.08, 0.55

    def __init__(
        self,
        title: str,
        rows: int,
        columns: int,
        *,
        width: float,
        height: float,
        left: float,
        below: float,
    ) -> None:
        from matplotlib.figure import Figure

        self.width, self.height, self.left = width, height, left
        self.across, self.down = left + width + self.RIGHT, self.TITLE + height + below
        size = (max(columns * self.across, 6.0), rows * self.down + self.TOP)
        self.figure = Figure(size)
        self.figure.text(
            *(0.1 / size[0], 1 - 0.1 / size[1], title), fontsize=11, weight="bold", va="top"
        )

    def heat_map(
        self,
        row: int,
        column: int,
        title: str,
        values: Float[Tensor, "n_row n_column"],
        bound: float | None = None,
        *,
        first: int = 0,
    ) -> "matplotlib.axes.Axes":
        """With a bound, red is positive and blue negative; without, weights from white to blue.

        first: the number of the leftmost column.
        """
        from matplotlib.colors import Normalize, PowerNorm

        n_row, n_column = values.shape
        # Most weights are small: the power lets them be seen.
        scale = PowerNorm(0.5, 0, 1) if bound is None else Normalize(-bound or -1, bound or 1)
        x, y = column * self.across + self.left, self.TOP + row * self.down + self.TITLE
        axis = self._axes(x, y, self.width)
        image = axis.imshow(
            values.numpy(),
            cmap="Blues" if bound is None else "RdBu_r",
            norm=scale,
            interpolation="nearest",
            aspect="auto",
            extent=(first - 0.5, first + n_column - 0.5, n_row - 0.5, -0.5),
        )
        axis.locator_params(integer=True, steps=[1, 2, 4, 8, 10])
        axis.set_facecolor("0.9")
        axis.set_title(title, fontsize=9)
        bar = self.figure.colorbar(image, cax=self._axes(x + self.width + 0.06, y, self.BAR))
        if bound is None:
            bar.set_ticks([0, 0.05, 0.2, 0.5, 1])
        for each in (axis, bar.ax):
            each.tick_params(length=0, pad=2, labelsize=SMALL)
        for line in (*axis.spines.values(), bar.outline):
            line.set(linewidth=0.5, edgecolor="0.5")
        return axis

    def _axes(self, x: float, y: float, width: float) -> "matplotlib.axes.Axes":
        across, down = self.figure.get_size_inches()
        place = (x / across, 1 - (y + self.height) / down, width / across, self.height / down)
        return self.figure.add_axes(place)


def token_grid(
    title: str, rows: int, columns: int, queries: Sequence[str], keys: Sequence[str]
) -> Grid:
    """Panels with a square for each edge, and room for the pieces beside them."""
    side = max(0.13, min(0.3, 2.6 / max(len(queries), len(keys))))
    left, below = (0.15 + 0.065 * max(map(len, pieces)) for pieces in (queries, keys))
    width, height = max(1.2, side * len(keys)), max(1.2, side * len(queries))
    return Grid(title, rows, columns, width=width, height=height, left=left, below=below)


def shown(vocabulary: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The pieces with an open box for a space, which fonts have and eyes find."""
    return [piece.replace("\u2581", "\u2423") for piece in vocabulary.pieces(tokens)]


def label_tokens(axis: "matplotlib.axes.Axes", queries: Sequence[str], keys: Sequence[str]) -> None:
    """Pieces beside their rows and below their columns."""
    axis.set_xticks(range(len(keys)), keys, rotation=90)
    axis.set_yticks(range(len(queries)), queries)
