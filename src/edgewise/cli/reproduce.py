"""edgewise reproduce."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from edgewise.cli.console import say, stage_progress
from edgewise.data.encode import cores
from edgewise.errors import SettingError

if TYPE_CHECKING:
    from edgewise.reproduction.cells import Cell
    from edgewise.reproduction.clutrr.cells import GraphCell
    from edgewise.reproduction.corpora import Texts
    from edgewise.reproduction.study import Study

OUT = Path("runs/reproduction")

reproduce = App(name="reproduce", help_format="markdown")  # its help is that of its default


@reproduce.command(name="list")
def list_experiments() -> None:
    """List the experiments with their rows and the paper's figures, and the scales.

    ```sh
    edgewise reproduce list
    ```
    """
    from edgewise.reproduction.clutrr.settings import read_graph_experiment
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
    beyond = read_graph_experiment()
    print(f"{'clutrr':<12} {beyond.title}")
    print(f"{'':<12} {beyond.asks}")
    print(f"{'':<12} sets: {', '.join(each.name for each in beyond.sets)}")
    for graph_row in beyond.rows:
        print(f"  {graph_row.name:<16} {graph_row.title}")
    print()
    for name in scale_names():
        scale = read_scale(name)
        print(f"{name:<16} {scale.title} ({', '.join(scale.pairs)})")
        if scale.core_minutes is not None:
            print(f"{'':<16} about {scale.core_minutes:g} minutes of one core a cell")


@reproduce.command
def clutrr(
    *,
    data: Path | None = None,
    sets: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    rows: Annotated[list[str], Parameter(consume_multiple=True, negative=())] | None = None,
    seeds: Annotated[list[int], Parameter(consume_multiple=True, negative=())] | None = None,
    jobs: int | None = None,
    out: Path = OUT,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Beyond the paper: train on kinship graphs, test on longer chains of relatives.

    Each cell (a row, a set of questions, a seed) is run in its own process and stored as it ends;
    the same command again runs what is missing. The report is written as Markdown, JSON and PNG.

    ```sh
    edgewise reproduce clutrr --data clutrr
    edgewise reproduce clutrr --data clutrr --sets 2-4 --rows both neither --seeds 1
    ```

    Parameters
    ----------
    data
        Folder with data_db9b8f04 and data_089907f8. Not needed where all cells are there.
    sets
        By the hops to train on: 2-4, 2-3. [default: both]
    rows
        Only these of the rows that `edgewise reproduce list` names. [default: all]
    seeds
        One cell each. [default: 1 2 3]
    jobs
        Cells side by side, a core each. [default: as many as there are cores]
    out
        Folder of cells and reports.
    dry_run
        Say what would be run, and what it would cost.
    """
    from edgewise.reproduction.clutrr.cells import GraphCell, GraphResult, finished
    from edgewise.reproduction.clutrr.questions import read_set
    from edgewise.reproduction.clutrr.settings import read_graph_experiment
    from edgewise.reproduction.clutrr.study import report_path, results_of, write_report
    from edgewise.reproduction.clutrr.worker import order
    from edgewise.reproduction.grid import run_cells
    from edgewise.reproduction.results import require_same_corpus
    from edgewise.reproduction.study import require_own_report

    if jobs is not None and jobs < 1:
        raise SettingError(f"--jobs must be 1 or more; got {jobs}")
    for seed in seeds or ():
        if not 0 <= seed < 2**63:
            raise SettingError(f"--seeds must be 0 or more, and below 2^63; got {seed}")
    experiment = read_graph_experiment()
    of_sets = [experiment.set(name) for name in dict.fromkeys(sets or experiment.set_names)]
    of_rows = [experiment.row(name) for name in dict.fromkeys(rows or experiment.row_names)]
    wanted = [
        GraphCell.of(experiment, each, row, seed)
        for seed in dict.fromkeys(seeds or (1, 2, 3))
        for each in of_sets
        for row in of_rows
    ]
    require_own_report(report_path(out))
    before = results_of(experiment, out)  # what is damaged is told before the work
    waiting = [cell for cell in wanted if finished(cell, out) is None]
    at_once = min(jobs or cores(), max(1, len(waiting)))
    _say_graph_plan(wanted, waiting, at_once, experiment.core_minutes)
    if dry_run:
        return
    folders = {}
    if waiting or data is not None:
        if data is None:
            needed = ", ".join(each.folder for each in of_sets)
            raise SettingError(f"give --data, the folder with the questions ({needed})")
        for each in of_sets:
            files = read_set(data / each.folder).files
            known: list[GraphResult] = [r for row in before[each.name].values() for r in row]
            require_same_corpus(known, files)
            for cell in waiting:
                if cell.set_name == each.name:
                    folders[order(cell, data / each.folder, out)] = cell
    done = 0

    def ended(cell: GraphCell) -> None:
        nonlocal done
        done += 1
        result = finished(cell, out)
        assert result is not None
        accuracy = ", ".join(f"{h} hops {t.accuracy:.3f}" for h, t in result.tests.items())
        say(f"{cell.name}, {done} of {len(waiting)}: {accuracy}")
        write_report(experiment, out)

    run_cells(folders, at_once, out=out, ended=ended, told=lambda running: None)
    if path := write_report(experiment, out):
        say(str(path))


def _say_graph_plan(
    cells: Sequence["GraphCell"], waiting: Sequence["GraphCell"], jobs: int, minutes: float
) -> None:
    from edgewise.cli.training_progress import duration

    rounds = -(-len(waiting) // jobs)
    say(
        f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished; {jobs} side by side; "
        f"about {duration(60 * minutes * rounds)} on cores like those of the docs"
    )
    for cell in waiting:
        say(f"  {cell.name}")


@reproduce.command(show=False)
def graph_cell(folder: Path, /, *, parent: int | None = None) -> None:
    """Run one cell of clutrr, in the folder that has its cell.json.

    Parameters
    ----------
    folder
        Of the cell.
    parent
        Process to end with.
    """
    from edgewise.reproduction.clutrr.worker import run_folder

    if not (folder / "cell.json").is_file():
        raise SettingError(f"{folder} is not the folder of a cell: it has no cell.json")
    run_folder(folder, parent)


@reproduce.command(show=False)
def cell(folder: Path, /, *, parent: int | None = None) -> None:
    """Train and measure one cell, in the folder that has its cell.json.

    Parameters
    ----------
    folder
        Of the cell.
    parent
        Process to end with.
    """
    from edgewise.cli.training_progress import TrainingProgress
    from edgewise.reproduction.worker import run_cell
    from edgewise.storage import read_json
    from edgewise.training.ranks import Ranks

    if not (folder / "cell.json").is_file():
        raise SettingError(f"{folder} is not the folder of a cell: it has no cell.json")
    if not Ranks.of_environment().is_first:
        run_cell(folder)
        return
    with TrainingProgress(int(read_json(folder / "cell.json")["training"]["steps"])) as reporter:
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
) -> None:
    """Rerun tables and claims of the paper.

    Each cell (a row, a pair of languages, a seed) is trained and measured in its own process and
    stored as it ends; a cell that several tables share is run once. The same command again goes on
    where it was stopped, in mid-training too. Reports are written as Markdown, JSON and PNG.

    ```sh
    edgewise reproduce list
    edgewise reproduce table2 --scale demo
    edgewise reproduce table1 table2 table3 --scale multi30k --data multi30k --seeds 1 2 3
    edgewise reproduce table3 --scale multi30k --rows keys values --row mine.toml
    ```

    Parameters
    ----------
    experiments
        Those that `edgewise reproduce list` names.
    scale
        Corpus, model and budget: a name, or a TOML file of your own. [default: the smallest]
    data
        Folder with the corpus. [default: where `edgewise data get` puts it]
    pairs
        Languages, as en-de. [default: all that experiment and scale have]
    rows
        Only these rows. [default: all]
    row
        File with a row of your own: name, and what of [model] and [training] differs.
    seeds
        One cell each. [default: 1]
    budget
        Updates of each cell. [default: the scale's]
    threads
        CPU threads of a cell, on which its last bits depend. [default: the scale's]
    ranks
        Processes that train a cell together, on a GPU each. [default: the scale's]
    jobs
        Cells side by side. [default: as many as there are cores for]
    out
        Folder of cells, reports, corpora and training.
    dry_run
        Say what would be run, and what it would cost.
    """
    from edgewise.cli.grid_progress import grid_progress
    from edgewise.reproduction.cells import Changes, different
    from edgewise.reproduction.experiments import read_experiment, read_row
    from edgewise.reproduction.grid import run_cells
    from edgewise.reproduction.scales import read_scale
    from edgewise.reproduction.study import Study, require_known, require_own_report, unfinished
    from edgewise.reproduction.worker import order

    if not experiments:
        raise SettingError("which one? edgewise reproduce list names the experiments")
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
        studies.append(Study.of(experiment, of, changes, out))
    require_known(studies, pairs or (), rows or ())
    if rows is not None:
        rows = [*rows, *(each.name for each in own)]
    chosen = pairs or [pair for study in studies for pair in study.pairs]
    speeds = [study for study in studies if study.experiment.measure != "BLEU"]
    grids = [study for study in studies if study not in speeds]
    wanted = different(cell for study in grids for cell in study.cells(chosen, rows, seeds or (1,)))
    waiting = unfinished(wanted, out)
    at_once = jobs or _jobs(waiting)
    _say_plan(wanted, waiting, at_once)
    for study in studies:
        require_own_report(study.report_path)
    for study in grids:
        for pair in study.pairs:
            study.results(pair)  # what is damaged, or of another corpus, is told before the work
    if dry_run:
        return
    texts = _texts(studies, speeds, wanted, waiting, data, out)
    folders = {order(cell, texts[cell.scale.name, cell.pair], out): cell for cell in waiting}

    def ended(cell: "Cell") -> None:
        progress.ended(cell)
        for study in grids:
            if cell.scale == study.scale and cell.pair in study.pairs:
                study.write_report()

    with grid_progress(waiting) as progress:
        run_cells(folders, at_once, out=out, ended=ended, told=progress.told)
    for study in grids:
        say(str(study.write_report()))
    for study in speeds:
        pair = study.pairs[0]  # languages make no difference
        _speed(study, pair, rows, texts[study.scale.name, pair].corpus)


def _texts(
    studies: Sequence["Study"],
    speeds: Sequence["Study"],
    wanted: Sequence["Cell"],
    waiting: Sequence["Cell"],
    data: Path | None,
    out: Path,
) -> dict[tuple[str, str], "Texts"]:
    """The corpora that are needed, by scale and pair: with --data all, which are checked then."""
    from edgewise.reproduction.corpora import texts_of
    from edgewise.reproduction.results import finished, require_same_corpus

    needed = {(cell.scale.name, cell.pair) for cell in (wanted if data else waiting)}
    needed |= {(study.scale.name, study.pairs[0]) for study in speeds}
    scales = {study.scale.name: study.scale for study in studies}
    texts = {
        (name, pair): texts_of(scales[name], pair, data, out, say) for name, pair in sorted(needed)
    }
    for cell in wanted:
        result, of_cell = finished(cell, out), texts.get((cell.scale.name, cell.pair))
        if result is not None and of_cell is not None:
            require_same_corpus([result], of_cell.files)
    return texts


def _jobs(cells: Sequence["Cell"]) -> int:
    """As many as there are cores for; where threads are not set, GPUs are meant: one."""
    if any(cell.training.threads is None for cell in cells) or not cells:
        return 1
    return max(1, cores() // max((cell.training.threads or 1) * cell.ranks for cell in cells))


def _say_plan(cells: Sequence["Cell"], waiting: Sequence["Cell"], jobs: int) -> None:
    from edgewise.cli.training_progress import duration

    say(f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished; {jobs} side by side")
    for scale in {cell.scale.name: cell.scale for cell in waiting}.values():
        mine = [cell for cell in waiting if cell.scale == scale]
        updates = sum(cell.training.steps for cell in mine)
        cost = ""
        if scale.core_minutes is not None:
            minutes = scale.core_minutes * updates / scale.training.steps
            cost = f"; about {duration(60 * minutes / jobs)} on cores like those of the docs"
        say(f"{scale.name}: {len(mine)} cells, {updates:,} updates{cost}")
    for cell in waiting:
        say(f"  {cell.name}: {cell.training.steps:,} updates")


def _speed(study: "Study", pair: str, rows: Sequence[str] | None, corpus: Path) -> None:
    from edgewise.reproduction.speed import measure_speed, write_speed_report

    path = study.report_path
    cells = {
        row.name: study.cell(row, pair, 1)
        for row in study.rows(pair)
        if rows is None or row.name in rows
    }
    if path.is_file():
        say(f"{path} is there already (remove it to measure again)")
        return
    with stage_progress() as progress:
        speeds = measure_speed(cells, corpus, lambda done, of: progress("updates", done, of))
    write_speed_report(study, pair, speeds)
    say(str(path))
