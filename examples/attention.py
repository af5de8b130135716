"""The library at work, in about a minute: what it computes, how exactly, how fast, with how much
memory, and a picture of what a layer learns.

    python examples/attention.py [--out runs/attention]

A small layer is trained to copy the token three places back: possible only if it knows distances.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from edgewise import RelationAttention, RelativePositions, attention_parts, relation_attention


def agreement() -> None:
    print(
        "1. Every backend against the definition (equations 3 and 4), float64, largest difference"
    )
    print("   in the output and in the gradients of query, key, value and both tables")
    torch.manual_seed(0)
    n, d_head, k = 150, 8, 5
    shapes = [(2, 3, n, d_head)] * 3 + [(2 * k + 1, d_head)] * 2
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    mask = (torch.arange(n) < torch.tensor([n, n - 40])[:, None])[:, None, None, :]

    def results(method: str, causal: bool) -> list[Tensor]:
        query, key, value, key_table, value_table = inputs
        output = relation_attention(
            *(query, key, value, RelativePositions(k)),
            key_table=key_table,
            value_table=value_table,
            mask=mask,
            causal=causal,
            method=method,
        )
        return [output, *torch.autograd.grad(output.square().sum(), inputs)]

    for method in ("diagonal", "blockwise", "gather", "chunked_gather"):
        for causal in (False, True):
            pairs = zip(results(method, causal), results("reference", causal), strict=True)
            worst = max((a - b).abs().max().item() for a, b in pairs)
            print(f"   {method:14} {'causal' if causal else 'both ways':10} {worst:.1e}")


def in_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_ > 0:  # the first is to warm up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(of_run) for name, of_run in times.items()}


def speed() -> None:
    print("\n2. Time of a forward and backward pass, 8 heads of 64, k = 16, medians in turns")
    print(f"   {'':24}{'plain attention':>18}{'with relations':>18}{'ratio':>8}")
    for n, batch, rounds in ((32, 64, 20), (512, 4, 10), (2048, 1, 5)):
        query, key, value = (torch.randn(batch, 8, n, 64, requires_grad=True) for _ in range(3))
        tables = [torch.randn(33, 64, requires_grad=True) for _ in range(2)]
        grad = torch.randn(batch, 8, n, 64)

        def plain(inputs: tuple[Tensor, ...] = (query, key, value), grad: Tensor = grad) -> object:
            return torch.autograd.grad(scaled_dot_product_attention(*inputs), inputs, grad)

        def ours(
            inputs: tuple[Tensor, ...] = (query, key, value, *tables), grad: Tensor = grad
        ) -> object:
            query, key, value, key_table, value_table = inputs
            output = relation_attention(
                *(query, key, value, RelativePositions(16)),
                key_table=key_table,
                value_table=value_table,
            )
            return torch.autograd.grad(output, inputs, grad)

        times = in_turns({"plain": plain, "ours": ours}, rounds)
        print(
            f"   {f'n = {n}, batch {batch}':24}{times['plain'] * 1e3:>15.1f} ms"
            f"{times['ours'] * 1e3:>15.1f} ms{times['ours'] / times['plain']:>7.2f}x"
        )
    n = 16384
    edges = n * n * 64 * 4
    print(f"   At n = {n:,} the vectors of all edges, as the paper lays them out, are ")
    print(f"   {edges / 2**30:.0f} GiB for keys and as much for values; here they are never made.")


class Copier(nn.Module):
    """One layer of attention that knows no positions but distances."""

    def __init__(self, n_symbols: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, d_model)
        self.attention = RelationAttention(d_model, heads=2, max_distance=5)
        self.output = nn.Linear(d_model, n_symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.output(self.attention(self.embedding(symbols)))


def learn(back: int) -> tuple[Copier, Tensor]:
    print(f"\n3. A layer learns to copy the symbol {back} places back")
    torch.manual_seed(1)
    model = Copier(n_symbols=12, d_model=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(61):
        symbols = torch.randint(12, (32, 24))
        logits = model(symbols)[:, back:]
        loss = cross_entropy(logits.flatten(0, 1), symbols[:, :-back].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            right = (logits.argmax(-1) == symbols[:, :-back]).float().mean()
            print(f"   step {step:2}   loss {loss.item():.3f}   right {right:.0%}")
    longer = torch.randint(12, (8, 200))
    right = (model(longer)[:, back:].argmax(-1) == longer[:, :-back]).float().mean()
    print(f"   on sequences of 200, never seen in training: right {right:.0%}")
    return model, torch.randint(12, (1, 24))


@torch.no_grad()
def picture(model: Copier, symbols: Tensor, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    layer = model.attention
    x = model.embedding(symbols)
    query, key = (
        projection(x).unflatten(-1, (2, 32)).transpose(1, 2)
        for projection in (layer.query, layer.key)
    )
    parts = attention_parts(query, key, RelativePositions(5), key_table=layer.key_table)
    figure, axes = plt.subplots(2, 4, figsize=(15, 7.2), layout="constrained")
    bound = max(parts.content.abs().max().item(), parts.relation.abs().max().item())
    for head, row in enumerate(axes):
        columns = (("content", "RdBu_r"), ("relation", "RdBu_r"), ("weights", "Greys"))
        for axis, (name, colours) in zip(row, columns, strict=False):
            limits = (0, 1) if name == "weights" else (-bound, bound)
            shown = getattr(parts, name)[0, head]
            image = axis.imshow(shown, cmap=colours, vmin=limits[0], vmax=limits[1])
            axis.set_title(f"head {head}: {name}" + ("" if name == "weights" else " logits"))
            axis.set(xlabel="key position", ylabel="query position")
            figure.colorbar(image, ax=axis, shrink=0.8)
        mean = parts.relation[0, head].numpy()
        distances = range(-5, 6)
        of_distance = [mean.diagonal(distance).mean() for distance in distances]
        row[3].bar(distances, of_distance, color="tab:gray")
        row[3].set_title(f"head {head}: relation logit by distance")
        row[3].set_xlabel("distance j - i, clipped at 5")
    figure.suptitle("What one layer learned: each logit is its content part plus its relation part")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    print(f"\n4. A picture of its logits, in their two parts: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/attention"), help="of the picture")
    out = parser.parse_args().out
    agreement()
    speed()
    model, symbols = learn(back=3)
    picture(model, symbols, out / "attention.png")


if __name__ == "__main__":
    main()
