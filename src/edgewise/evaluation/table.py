"""A report for people."""

from edgewise.evaluation.bootstrap import Interval
from edgewise.evaluation.report import Report
from edgewise.evaluation.significance import Comparison

_ROW = "{:<12}  {:>9}  {:>6}  {}"


def table(report: Report, system: str, against: str = "") -> str:
    """The report as lines of text, with the names of the systems, each score with its signature."""
    lines = [f"{report.sentences:,} sentences of {system}", ""]
    for score, title in (
        (report.bleu, "BLEU"),
        (report.chrf, "chrF"),
        (
            report.tokenised_lowercased_bleu,
            "BLEU, tokenised and lowercased: for comparison with older papers only",
        ),
        (
            report.compound_split_bleu,
            "BLEU, compounds split as in tensor2tensor: for comparison with older papers only",
        ),
    ):
        lines += [f"{score.value:6.2f}  {title}", f"        {score.signature}"]
    lines += ["", _ROW.format("source words", "sentences", "BLEU", "95 % interval")]
    for name, sentences, score, middle in (
        *((b.name, b.sentences, b.bleu, b.interval) for b in report.by_source_length),
        ("all", report.sentences, report.bleu, report.interval),
    ):
        lines.append(_ROW.format(name, f"{sentences:,}", f"{score.value:.2f}", _between(middle)))
    lines.append(report.by_source_length[0].bleu.signature)
    if report.comparison is not None:
        lines += ["", *_compared(report.comparison, system, against)]
    return "\n".join(lines)


def _compared(comparison: Comparison, system: str, against: str) -> list[str]:
    return [
        f"{comparison.bleu.value:6.2f}  BLEU of {system}",
        f"{comparison.against.value:6.2f}  BLEU of {against}",
        f"{comparison.difference:+6.2f}  difference, 95 % interval "
        f"{_between(comparison.interval, '+')}, p = {comparison.p_value:.4f} by paired bootstrap",
        comparison.bleu.signature,
    ]


def _between(middle: Interval | None, sign: str = "") -> str:
    if middle is None:
        return "-"
    return f"{middle[0]:{sign}.2f} to {middle[1]:{sign}.2f}"
