"""edgewise reproduce."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from edgewise.cli.console import say, stage_progress
from edgewise.data.encode import cores
from edgewise.errors import SettingError
from edgewise.training.settings import TrainingSettings

if TYPE_CHECKING:
    from edgewise.reproduction.cells import Cell
    from edgewise.reproduction.study import Study
    from edgewise.reproduction.task import PreparedData

OUT = Path("runs/reproduction")

reproduce = App(name="reproduce", help_format="markdown")  # its help is that of its default


@reproduce.command(name="list")
def list_experiments() -> None:
    """List the experiments with their rows and the paper's figures, and the scales.

    ```sh
    edgewise reproduce list
    ```
    """
    from edgewise.reproduction.experiments import experiment_names, read_experiment
    from edgewise.reproduction.scales import read_scale, scale_names

    for name in experiment_names():
        experiment = read_experiment(name)
        print(f"{name:<12} {experiment.title}")
        print(f"{'':<12} {experiment.says}")
        print(f"{'':<12} scales: {', '.join(experiment.scales)}")
        for row in experiment.rows:
            figures = "  ".join(f"{pair} {value:g}" for pair, value in row.paper.items())
            print(f"  {row.name:<16} {row.heading:<26} {figures}".rstrip())
        print()
    for name in scale_names():
        scale = read_scale(name)
        print(f"{name:<20} {scale.title} ({', '.join(scale.pairs)})")
        if scale.core_minutes is not None:
            print(f"{'':<20} about {scale.core_minutes:g} minutes of one core per cell")


@reproduce.command(name="settings")
def print_settings(
    experiment: str,
    row: str,
    /,
    *,
    scale: str = "wmt14",
    pair: str = "en-de",
    corpus: Path = Path("corpus"),
    out: Path = Path("run"),
) -> None:
    """Print the settings of one row as TOML, for `edgewise train`.

    ```sh
    edgewise reproduce settings table1 relative --corpus wmt14-en-de --out runs/base > base.toml
    edgewise train base.toml
    ```

    Parameters
    ----------
    experiment
        A name that `edgewise reproduce list` shows.
    row
        The name of one of its rows.
    scale
        Corpus, model and budget: a name, or a TOML file of your own.
    pair
        Pair of languages.
    corpus
        Folder that `edgewise prepare` wrote.
    out
        Folder of the run.
    """
    from edgewise.reproduction.cells import Changes
    from edgewise.reproduction.experiments import read_experiment
    from edgewise.reproduction.scales import TranslationScale, read_scale
    from edgewise.reproduction.study import Study, require_known
    from edgewise.reproduction.translation import run_settings

    study = Study(read_experiment(experiment), read_scale(scale), Changes(), OUT)
    if not isinstance(study.scale, TranslationScale):
        raise SettingError(
            f"{experiment} is not an experiment on translation: edgewise train cannot run it"
        )
    require_known([study], [pair], [row])
    (cell,) = study.cells([pair], [row], [TrainingSettings().seed])
    print(run_settings(cell, corpus, out).toml(), end="")


@reproduce.command(show=False)
def cell(folder: Path, /, *, parent: int | None = None) -> None:
    """Train and measure one cell, in the folder that has its cell.json.

    Parameters
    ----------
    folder
        Folder of the cell.
    parent
        Process whose end stops this one.
    """
    from edgewise.cli.training_progress import TrainingProgress
    from edgewise.reproduction.worker import read_order, run_cell
    from edgewise.training.ranks import Ranks

    if not Ranks.of_environment().is_first:
        run_cell(folder)
        return
    with TrainingProgress(read_order(folder)[0].budget) as reporter:
        run_cell(folder, reporter, parent)


@reproduce.default
def run(
    *experiments: str,
    scale: str | None = None,
    data: Path | None = None,
    pairs: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    rows: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    row: Annotated[list[Path], Parameter(consume_multiple=True, negative=())] | None = None,
    seeds: Annotated[list[int], Parameter(consume_multiple=True, negative=())] | None = None,
    budget: int | None = None,
    threads: int | None = None,
    ranks: int | None = None,
    jobs: int | None = None,
    out: Path = OUT,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    report_only: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run the paper's experiments again, and those beyond it.

    Each cell (a row, a pair of languages, a seed) is trained and measured in its own process, and
    its result is stored at its end; a cell that several tables share is run once. The same command
    continues where it was stopped, also in the middle of training. Reports are written as Markdown,
    JSON and PNG.

    ```sh
    edgewise reproduce list
    edgewise reproduce table2 --scale demo
    edgewise reproduce table1 table2 table3 --scale multi30k-converged --seeds 1 2 3 --dry-run
    edgewise reproduce table3 --scale multi30k-converged --rows keys values --row mine.toml
    edgewise reproduce clutrr --data clutrr --seeds 1 2 3
    ```

    Parameters
    ----------
    experiments
        Names that `edgewise reproduce list` shows.
    scale
        Corpus, model and budget: a name, or a TOML file of your own. [default: the smallest]
    data
        Folder with the corpus. [default: the folder of `edgewise data get`]
    pairs
        Pairs of languages, such as en-de. [default: all of the experiment and the scale]
    rows
        Rows to run. [default: all]
    row
        File with a row of your own: name, and changes of [model] and [training].
    seeds
        Seeds, one cell each. [default: 1]
    budget
        Updates (clutrr: epochs) of each cell. [default: the scale's]
    threads
        CPU threads of a cell; the last bits of results depend on it. [default: the scale's]
    ranks
        Processes that train a cell together, one for each GPU. [default: the scale's]
    jobs
        Cells that run at the same time. [default: by the number of cores]
    out
        Folder of cells, reports, corpora and training.
    dry_run
        Print what would be run and its cost.
    report_only
        Write the reports of the finished cells; run nothing.
    """
    from edgewise.cli.grid_progress import grid_progress
    from edgewise.reproduction.cells import Changes, without_duplicates
    from edgewise.reproduction.experiments import read_experiment, read_row
    from edgewise.reproduction.grid import run_cells
    from edgewise.reproduction.results import finished
    from edgewise.reproduction.scales import read_scale
    from edgewise.reproduction.study import Study, require_known, require_own_report
    from edgewise.reproduction.worker import write_order

    if not experiments:
        raise SettingError("no experiment is given: edgewise reproduce list shows their names")
    for name, value in (("budget", budget), ("threads", threads), ("ranks", ranks), ("jobs", jobs)):
        if value is not None and value < 1:
            raise SettingError(f"--{name} must be 1 or more; got {value}")
    own = [read_row(path) for path in row or ()]
    changes = Changes(budget, threads, ranks)
    studies = []
    for name in dict.fromkeys(experiments):
        experiment = read_experiment(name)
        for each in own:
            experiment = experiment.with_row(each)
        of = read_scale(scale or experiment.scales[0])
        studies.append(Study(experiment, of, changes, out))
    require_known(studies, pairs or (), rows or ())
    if rows is not None:
        rows = [*rows, *(each.name for each in own)]
    chosen = pairs or [pair for study in studies for pair in study.pairs]
    speeds = [study for study in studies if study.experiment.measure == "speed"]
    grids = [study for study in studies if study not in speeds]
    wanted = without_duplicates(
        cell for study in grids for cell in study.cells(chosen, rows, seeds or (1,))
    )
    waiting = [cell for cell in wanted if finished(cell, out) is None]
    at_once = jobs or _jobs(waiting)
    _say_plan(wanted, waiting, at_once)
    for study in studies:
        require_own_report(study.report_path)
    for study in grids:
        for pair in study.pairs:
            study.results(pair)  # raises errors of damaged results before the work
    if dry_run:
        return
    if report_only:
        _write_reports(grids)
        return
    data_of = _prepare(studies, speeds, wanted, waiting, data, out)
    folders = {
        write_order(cell, data_of[cell.scale.name, cell.pair], out): cell for cell in waiting
    }

    def on_end(cell: "Cell") -> None:
        progress.end(cell)
        for study in grids:
            if cell.scale == study.scale and cell.pair in study.pairs:
                study.write_report()

    with grid_progress(waiting) as progress:
        run_cells(folders, at_once, out=out, on_end=on_end, on_tick=progress.show)
    _write_reports(grids)
    for study in speeds:
        pair = study.pairs[0]  # languages make no difference
        _speed(study, pair, rows, data_of[study.scale.name, pair].folder / "corpus")


def _write_reports(studies: Sequence["Study"]) -> None:
    for study in studies:
        say(str(study.write_report() or f"{study.experiment.name}: no cell is finished"))


def _prepare(
    studies: Sequence["Study"],
    speeds: Sequence["Study"],
    wanted: Sequence["Cell"],
    waiting: Sequence["Cell"],
    data: Path | None,
    out: Path,
) -> dict[tuple[str, str], "PreparedData"]:
    """Prepare the data that are needed, by scale and pair; with --data all, and check them."""
    from edgewise.reproduction.results import require_same_corpus
    from edgewise.reproduction.task import task_for

    needed = {(cell.scale.name, cell.pair) for cell in (wanted if data else waiting)}
    needed |= {(study.scale.name, study.pairs[0]) for study in speeds}
    scales = {study.scale.name: study.scale for study in studies}
    prepared = {
        (name, pair): task_for(scales[name]).prepare(scales[name], pair, data, out, say)
        for name, pair in sorted(needed)
    }
    for study in studies:
        for pair in study.pairs:
            if of_pair := prepared.get((study.scale.name, pair)):
                found = study.results(pair).values()
                require_same_corpus([each for row in found for each in row], of_pair.files)
    return prepared


def _jobs(cells: Sequence["Cell"]) -> int:
    """Return the number of cells that the cores can run; one if threads are not set (GPUs)."""
    if any(cell.threads is None for cell in cells) or not cells:
        return 1
    return max(1, cores() // max((cell.threads or 1) * cell.ranks for cell in cells))


def _say_plan(cells: Sequence["Cell"], waiting: Sequence["Cell"], jobs: int) -> None:
    from edgewise.cli.training_progress import duration

    say(f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished; {jobs} at a time")
    for scale in {cell.scale.name: cell.scale for cell in waiting}.values():
        mine = [cell for cell in waiting if cell.scale == scale]
        total, unit = sum(cell.budget for cell in mine), scale.budget_unit
        cost = ""
        if scale.core_minutes is not None:
            minutes = scale.core_minutes * total / getattr(scale.training, scale.budget_setting)
            cost = f"; about {duration(60 * minutes / jobs)} on cores like those of the docs"
        say(f"{scale.name}: {len(mine)} cells, {total:,} {unit}{cost}")
    for cell in waiting:
        say(f"  {cell.name}: {cell.budget:,} {cell.scale.budget_unit}")


def _speed(study: "Study", pair: str, rows: Sequence[str] | None, corpus: Path) -> None:
    from edgewise.reproduction.speed import ROUNDS, measure_speed, write_speed_report

    rounds = ROUNDS if study.changes.budget is None else study.changes.budget

    path = study.report_path
    cells = {
        row.name: study.cell(row, pair, 1)
        for row in study.rows(pair)
        if rows is None or row.name in rows
    }
    if path.is_file():
        say(f"{path} exists already (remove it to measure again)")
        return
    with stage_progress() as progress:
        speeds = measure_speed(cells, corpus, rounds, partial(progress, "updates"))
    write_speed_report(study, pair, speeds, rounds)
    say(str(path))
