"""The learning rate: that of Vaswani et al., section 5.3, or one that decays to zero."""


def learning_rate(
    step: int, d_model: int, warmup: int, factor: float = 1.0, decay_to: int | None = None
) -> float:
    """The rate of update t = 1, 2, …: factor · d^-0.5 · min(t^-0.5, t · warmup^-1.5).

    decay_to: after the warm-up the rate decays linearly instead, and is zero after this update.
    """
    if decay_to is None or step <= warmup:
        return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    left = max(0, decay_to + 1 - step) / (decay_to + 1 - warmup)
    return float(factor * (d_model * warmup) ** -0.5 * left)
