"""The learning rate of Vaswani et al., section 5.3."""


def learning_rate(step: int, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """factor · d^-0.5 · min(t^-0.5, t · warmup^-1.5) for update t = 1, 2, …"""
    return float(factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
