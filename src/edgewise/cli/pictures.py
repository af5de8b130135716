"""Pictures of attention: each logit in its content part and its position part."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from edgewise.attention import RelationAttention, RelativePositions, attention_parts
from edgewise.data.vocabulary import END
from edgewise.decoding import Translator
from edgewise.errors import EdgewiseError


def require_matplotlib() -> None:
    """Raise unless pictures can be drawn."""
    if find_spec("matplotlib") is None:
        raise EdgewiseError("pictures need matplotlib: pip install 'edgewise[plots]'")


@torch.inference_mode()
def picture_attention(translator: Translator, text: str, folder: Path) -> Path:
    """Draw the encoder's self-attention in each layer and head; the folder of the pictures."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tokens = [*translator.vocabulary.encode([text])[0], END]
    pieces = translator.vocabulary.pieces(tokens)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (layer, x) in enumerate(_encoder_inputs(translator, tokens)):
        parts = _parts(layer, x)
        columns = {"content logits": parts[0], "position logits": parts[1], "weights": parts[2]}
        bound = max(parts[0].abs().max().item(), parts[1].abs().max().item())
        figure, axes = plt.subplots(
            layer.heads, 3, figsize=(15, 4.6 * layer.heads), layout="constrained", squeeze=False
        )
        for head, row in enumerate(axes):
            for axis, (name, values) in zip(row, columns.items(), strict=True):
                colours, low = ("Greys", 0.0) if name == "weights" else ("RdBu_r", -bound)
                high = 1.0 if name == "weights" else bound
                image = axis.imshow(values[0, head].numpy(), cmap=colours, vmin=low, vmax=high)
                axis.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=7)
                axis.set_yticks(range(len(pieces)), pieces, fontsize=7)
                axis.set_title(f"head {head + 1}: {name}")
                figure.colorbar(image, ax=axis, shrink=0.7)
        figure.suptitle(f"Encoder layer {number + 1}: rows attend to columns")
        figure.savefig(folder / f"encoder-layer-{number + 1}.png", dpi=70)
        plt.close(figure)
    return folder


def _encoder_inputs(
    translator: Translator, tokens: list[int]
) -> list[tuple[RelationAttention, Tensor]]:
    """Each self-attention layer of the encoder, and what it was given."""
    seen: list[tuple[RelationAttention, Tensor]] = []

    def keep(layer: torch.nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, RelationAttention)
        seen.append((layer, arguments[0]))

    layers = [m for m in translator.model.encoder.modules() if isinstance(m, RelationAttention)]
    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    translator.model.encode(torch.tensor([tokens]), None)
    for hook in hooks:
        hook.remove()
    return seen


def _parts(layer: RelationAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    query, key = (
        projection(x).unflatten(-1, (layer.heads, layer.d_head)).transpose(1, 2)
        for projection in (layer.query, layer.key)
    )
    relations = RelativePositions(layer.max_distance or 0)
    parts = attention_parts(query, key, relations, key_table=layer.key_table)
    return parts.content, parts.relation, parts.weights
