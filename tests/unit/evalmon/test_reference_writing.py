"""What is added comes back to the last bit, and nothing that is there is touched or lost."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalmon import reference, reference_index, reference_writing
from evalmon.errors import ConfigError, DataError, WriteError
from evalmon.reference_index import Entry, Point, Source
from evalmon.reference_writing import add, refuse_name
from evalmon.types import Curve, RunCurves, Sampling, Series

TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
SOURCE = Source("a table", "MIT", "2026-01-02")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder that is looked through, not there yet."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    return tmp_path / "curves"


def series(metric: str, values: "list[float] | np.ndarray") -> Series:
    steps = np.arange(1, len(values) + 1, dtype=np.int64) * 1000
    return Series(metric, steps, steps * 4_194_304, np.array(values, float))


def run(**curves: Curve) -> RunCurves:
    found = {TRAIN: Curve(series(TRAIN, [4.0, 3.5, 3.25]), {"divisor": "predicted_tokens"})}
    return RunCurves("a-run", "table.csv", {**found, **curves}, 4_194_304, 10**12, 10**9)


def about(folder: Path, name: str = "mine", **facts: object) -> Entry:
    return replace(Entry(name, folder, {}), **facts)  # pyright: ignore[reportArgumentType]


def test_what_is_added_comes_back_to_the_last_bit(folder: Path):
    awkward = [0.1 + 0.2, 6.14988e-05, 1e-300, 12.267267, np.nextafter(3.0, 4), 5e22]
    values = series("optim/lr", awkward)
    said = about(
        folder, aliases=("A/b",), model="m", parameters=7, stage="s", tokenizer="t",
        known_faults=("odd.",),
        published=(Point(TRAIN, 0.5, "paper", 10, "end"), Point(C4, 0, "p")),
    )  # fmt: skip
    thinned = Curve(series(C4, [3.0, 2.5]), {"shots": 5}, Sampling.THINNED, "every second")
    added = add(run(**{"optim/lr": Curve(values), C4: thinned}), said, SOURCE)
    assert added.warnings == ()
    entry = reference.find("a/B")
    assert entry == added.entry
    assert (entry.tokens_per_step, entry.planned_tokens, entry.warmup_tokens) == (
        4_194_304, 10**12, 10**9,
    )  # fmt: skip
    found = reference.load("mine")
    assert found.curves["optim/lr"].series.values.tobytes() == np.array(awkward).tobytes()
    assert found.curves["optim/lr"].series.tokens.tolist() == values.tokens.tolist()
    assert found.curves[C4].facts == {"shots": 5}
    assert (found.curves[C4].sampling, found.curves[C4].note) == (Sampling.THINNED, "every second")
    assert entry.curves[TRAIN].measure.unit == "nats per token"
    assert entry.curves[TRAIN].source == SOURCE
    assert (found.planned_tokens, found.warmup_tokens) == (10**12, 10**9)
    assert reference.verify() == ()
    text = (folder / "mine" / "train.ce_nats.csv").read_bytes()
    assert (
        text
        == b"step,tokens,value\n1000,4194304000,4.0\n2000,8388608000,3.5\n3000,12582912000,3.25\n"
    )


def test_adding_keeps_what_is_there(folder: Path):
    first = add(run(), about(folder, "one", model="1"), SOURCE).entry
    other = Source("another", "CC0", "2026-01-03")
    mixed = run(**{C4: Curve(series(C4, [3.0, 2.5]))})
    second = add(mixed, about(folder, "two"), {TRAIN: SOURCE, C4: other}).entry
    assert reference_index.parse(folder) == {"one": first, "two": second}
    assert [item.source for item in second.curves.values()] == [SOURCE, other]


def test_adding_at_once_loses_nothing(folder: Path):
    names = [f"run-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add(run(), about(folder, name), SOURCE), names))
    assert sorted(reference_index.parse(folder)) == names
    assert reference.verify() == ()


@pytest.mark.parametrize(
    "label", ["olmo3-7b-stage1", "Olmo-3-1025-7B-stage1", "MOREEVAL/190M-1XC", "Mine", "mine/alias"]
)
def test_a_name_or_alias_that_is_taken_is_refused(folder: Path, label: str):
    add(run(), about(folder, aliases=("Mine/Alias",)), SOURCE)
    before = (folder / "index.toml").read_bytes()
    with pytest.raises(ConfigError, match="is there already"):
        add(run(), about(folder, "new", aliases=(label,)), SOURCE)
    if label.islower() and "/" not in label:
        with pytest.raises(ConfigError, match="is there already"):
            add(run(), about(folder, label), SOURCE)
    assert (folder / "index.toml").read_bytes() == before
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["mine"]


@pytest.mark.parametrize("name", ["", "Mine", "a/b", "../up", ".hidden", "a b", "x" * 65, "mine\n"])
def test_a_name_that_cannot_be_a_folder_is_refused(folder: Path, name: str):
    with pytest.raises(ConfigError, match="--name"):
        add(run(), about(folder, name), SOURCE)
    assert not folder.exists()


def test_a_run_without_points_is_refused(folder: Path):
    with pytest.raises(DataError, match="'a-run' has no points"):
        add(replace(run(), curves={}), about(folder), SOURCE)
    with pytest.raises(DataError, match="'a-run' has no points"):
        add(replace(run(), curves={TRAIN: Curve(series(TRAIN, []))}), about(folder), SOURCE)


@pytest.mark.parametrize("metric", ["a b", "../x", "a//b", "train.ce", "/a", "ä"])
def test_a_metric_that_cannot_be_a_file_is_refused(folder: Path, metric: str):
    with pytest.raises(DataError, match="cannot be the name of a file"):
        add(run(**{metric: Curve(series(metric, [1.0]))}), about(folder), SOURCE)


def test_metrics_that_differ_only_in_case_are_refused(folder: Path):
    with pytest.raises(DataError, match="are one name"):
        add(run(**{"Train/ce_nats": Curve(series(TRAIN, [1.0]))}), about(folder), SOURCE)


def test_what_a_stopped_add_left_is_refused_by_name(folder: Path):
    (folder / "mine").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"in no index, as after an add that was stopped"):
        add(run(), about(folder), SOURCE)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="name another --folder"):
        add(run(), about(tmp_path / "file" / "curves"), SOURCE)


def test_a_broken_column_is_added_with_a_loud_fault(folder: Path):
    broken = series(C4, np.linspace(10, 9, 50))
    added = add(run(**{C4: Curve(broken)}), about(folder, known_faults=("known.",)), SOURCE)
    (warning,) = added.warnings
    assert warning.startswith(f"{C4}: the median of its last half is 9.2")
    assert reference.find("mine").known_faults == ("known.", warning)
    assert len(reference.load("mine").curves[C4].series) == 50


def test_what_was_left_out_or_sampled_is_said(folder: Path):
    sampled = Curve(series(C4, [3.0, 2.9]), {}, Sampling.SAMPLED, "500 rows drawn")
    found = replace(run(**{C4: sampled}), nonfinite=((7, TRAIN), (9, TRAIN)), superseded=12)
    added = add(found, about(folder), SOURCE)
    assert [text.split(": ")[0] for text in added.warnings[:2]] == [C4, TRAIN]
    assert "no verdict rests on it (500 rows drawn)" in added.warnings[0]
    assert "2 values that are no finite numbers" in added.warnings[1]
    assert "first at step 7" in added.warnings[1]
    assert added.warnings[2].startswith("12 points that a restart logged again")
    assert reference.load("mine").curves[C4].sampling is Sampling.SAMPLED


def test_seams_and_data_changes_are_kept(folder: Path):
    add(replace(run(), seams=(2000,), data_changes=(1000,)), about(folder), SOURCE)
    found = reference.load("mine")
    assert (found.seams, found.data_changes) == ((2000,), (1000,))


@pytest.mark.parametrize("name", ["index.toml", "index.partial", "index.csv", ".", "..", ".lock"])
def test_names_of_the_folder_itself_are_refused(folder: Path, name: str):
    with pytest.raises(ConfigError, match=f"--name '{name}'"):
        add(run(), about(folder, name), SOURCE)
    assert not folder.exists()
    add(run(), about(folder, "index"), SOURCE)
    assert reference.verify() == ()


@pytest.mark.parametrize("aliases", [("MINE",), ("x", "X"), ("",), (" ",)])
def test_an_alias_that_says_nothing_new_is_refused(folder: Path, aliases: tuple[str, ...]):
    with pytest.raises(ConfigError, match="--alias"):
        add(run(), about(folder, aliases=aliases), SOURCE)
    with pytest.raises(ConfigError, match="--alias"):
        refuse_name(about(folder, aliases=aliases))
    assert not folder.exists()


def test_a_name_can_be_refused_before_anything_is_read(folder: Path):
    refuse_name(about(folder))
    assert not folder.exists()
    add(run(), about(folder), SOURCE)
    with pytest.raises(ConfigError, match="is there already"):
        refuse_name(about(folder))


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_no_curves_are_left_where_the_index_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(reference_writing, "_write_index", fails)
        with pytest.raises((WriteError, KeyboardInterrupt)):
            add(run(), about(folder), SOURCE)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    add(run(), about(folder), SOURCE)
    assert reference.verify() == ()


def test_a_folder_in_place_of_the_partial_index_stops_nobody(folder: Path):
    (folder / "index.partial").mkdir(parents=True)
    add(run(), about(folder), SOURCE)
    assert reference.verify() == ()


@pytest.mark.parametrize(
    ("metric", "values", "said"),
    [
        (TRAIN, [3.0, 1e308, -1e308], r"1e\+308 at step 2000 is no value of a model \(2 such"),
        ("train/z_nats", [0.1, -1e300], r"-1e\+300 at step 2000 is no value of a model"),
        (C4, [3.0, -0.5], "-0.5 at step 2000 is below 0, which no loss is"),
        (C4, [40.0, 30.0, 25.0, 22.0, 21.0], "a percentage, a perplexity or another unit"),
    ],
)
def test_what_no_model_has_is_refused(folder: Path, metric: str, values: list[float], said: str):
    with pytest.raises(
        DataError, match=f"table.csv: {metric}: .*{said}".replace(" at step 2000", " at step 2,000")
    ):
        add(run(**{metric: Curve(series(metric, values))}), about(folder), SOURCE)
    assert not folder.exists()


def test_text_that_is_not_utf8_is_refused_and_leaves_nothing(folder: Path):
    with pytest.raises(ConfigError, match=r"\\udcff' is no text in UTF-8"):
        add(run(), about(folder, model="a\udcff"), SOURCE)
    assert [path.name for path in folder.iterdir()] == [".lock"]
