"""Reference curves are found by name, read by metric, and refused when they were changed."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from evalmon import reference, reference_index
from evalmon.errors import ConfigError, DataError
from evalmon.types import Sampling

TRAIN, C4 = "train/ce_nats", "eval/lm/c4_en-validation/ce_nats"
ROWS = "step,tokens,value\n1,100,4.5\n2,200,4.25\n5,500,3.9999999999999996\n"


def make(folder: Path, text: str = ROWS, **changes: Any) -> Path:
    """Write a folder with one reference of two curves; ``changes`` are of the first."""
    (folder / "mine").mkdir(parents=True)
    curves: list[dict[str, Any]] = []
    for metric in (TRAIN, C4):
        file = folder / "mine" / reference_index.file_name(metric)
        file.write_text(text if metric == TRAIN else ROWS)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        curves.append({"metric": metric, "points": 3, "sha256": digest})
    curves[0] |= changes
    write(folder, {"mine": {"source": "s", "aliases": ["Mine/A"], "curves": curves}})
    return folder


def write(folder: Path, references: Any, **top: Any) -> None:
    """Write an index with a source and two measures."""
    table = {
        "sources": {"s": {"source": "here", "licence": "MIT", "date": "2026-01-02"}},
        "measures": {
            "train.ce_nats": {"unit": "nats per token", "facts": {"z_loss": "excluded"}},
            "eval.lm.c4_en-validation.ce_nats": {"unit": "nats per token"},
        },
        "references": references,
        **top,
    }
    folder.mkdir(exist_ok=True)
    (folder / "index.toml").write_text(tomli_w.dumps(table))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder that is looked through, not there yet."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    return tmp_path / "curves"


def test_names_come_from_both_folders(folder: Path):
    shipped = reference.names()
    assert len(shipped) == 13
    assert shipped[:2] == ("olmo2-7b-stage1", "olmo3-7b-stage1")
    make(folder)
    assert reference.names() == (*shipped, "mine")
    assert reference.folders()[1] == folder


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("olmo3-7b-stage1", "olmo3-7b-stage1"),
        ("OLMO3-7b-Stage1", "olmo3-7b-stage1"),
        ("olmo-3-1025-7b-STAGE1", "olmo3-7b-stage1"),
        ("moreeval/190M-1xC", "ladder-190m-1xc"),
        ("wsd-decay/190M-10xC", "ladder-190m-10xc-constant-then-decay"),
    ],
)
def test_found_by_name_and_alias_in_either_case(said: str, name: str):
    assert reference.find(said).name == name


def test_a_name_that_is_not_there_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no reference 'olmo3-7b'.*'olmo3-7b-stage1'.*list"):
        reference.find("olmo3-7b")
    with pytest.raises(ConfigError, match=r"^no reference 'zzz'; see `evalmon reference list`$"):
        reference.find("zzz")


def test_load_gives_exact_numbers_and_what_the_index_says(folder: Path):
    make(folder, sampling="thinned", note="every third")
    found = reference.load("MINE/a")
    series = found.curves[TRAIN].series
    assert series.steps.tolist() == [1, 2, 5]
    assert series.tokens.tolist() == [100, 200, 500]
    assert series.values.tolist() == [4.5, 4.25, 3.9999999999999996]
    assert (series.steps.dtype, series.values.dtype) == (np.int64, np.float64)
    assert found.curves[TRAIN].sampling is Sampling.THINNED
    assert found.curves[TRAIN].note == "every third"
    assert found.curves[TRAIN].facts == {"z_loss": "excluded"}
    assert found.curves[C4].sampling is Sampling.FULL
    assert (found.name, found.source) == ("mine", str(folder / "mine"))


def test_only_the_metrics_asked_for_are_opened(folder: Path):
    make(folder)
    (folder / "mine" / "train.ce_nats.csv").unlink()
    assert list(reference.load("mine", [C4, "not/there"]).curves) == [C4]
    with pytest.raises(DataError, match=r"train\.ce_nats\.csv: cannot be read.*verify"):
        reference.load("mine")


def test_a_changed_file_is_refused(folder: Path):
    make(folder)
    file = folder / "mine" / "train.ce_nats.csv"
    file.write_text(ROWS.replace("4.25", "4.24"))
    with pytest.raises(DataError, match=r"train\.ce_nats\.csv: SHA-256 is not .*verify"):
        reference.load("mine", [TRAIN])
    assert [fault.file for fault in reference.verify()] == [file]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,value\n1,2\n", "line 1 is not 'step,tokens,value'"),
        (ROWS + "6,600,3.9\n", "4 points where index.toml says 3"),
        ("step,tokens,value\n", "0 points where index.toml says 3"),
        (ROWS.replace("5,500", "2,500"), "line 4: step 2 after 2"),
        (ROWS.replace("5,500", "5,150"), "line 4: tokens 150 after 200"),
        (ROWS.replace("4.25", "nan"), "line 3: value nan is not a finite number"),
        (ROWS.replace("4.25", "inf"), "line 3: value inf is not a finite number"),
        (ROWS.replace("4.25", "many"), "many"),
        (ROWS.replace("2,200", "2.5,200"), "2.5"),
        (ROWS.replace(",4.25", ""), "2 columns|columns changed|requires"),
        (ROWS.replace("2,200,4.25", "# 2,200,4.25"), "#"),
    ],
)
def test_what_is_no_curve_is_refused(folder: Path, text: str, said: str):
    make(folder, text)
    with pytest.raises(DataError, match=said) as error:
        reference.load("mine", [TRAIN])
    assert "train.ce_nats.csv" in str(error.value)
    assert "evalmon reference verify" in str(error.value)
    assert len(reference.verify(["mine"])) == 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"extra": {}}, r"unknown key 'extra'; known are"),
        ({"references": 3}, r"references: 3 where a table was expected"),
        ({"references": {"a": {"modell": "x"}}}, r"references\.a: unknown key 'modell'; .*'?model"),
        ({"references": {"a": {"curves": [{"metric": "m"}]}}}, r"curve 1: no source ''"),
        ({"references": {"a": {"source": "s", "curves": [{"metric": "m"}]}}}, "no measure 'm'"),
        ({"references": {"a": {"source": "t", "curves": [{"metric": TRAIN}]}}}, "no source 't'"),
        (
            {"references": {"a": {"source": "s", "curves": [{"metric": TRAIN}]}}},
            r"curve 1: \['points', 'sha256'\] missing",
        ),
        ({"references": {"a": {"planned_tokens": "many"}}}, "planned_tokens = 'many' is no count"),
        ({"references": {"a": {"planned_tokens": -1}}}, "planned_tokens = -1 is no count"),
        ({"references": {"a": {"tokens_per_step": True}}}, "tokens_per_step = True is no count"),
        ({"references": {"a": {"known_faults": "one"}}}, "known_faults = 'one' is no list"),
        ({"references": {"a": {"model": 7}}}, "model = 7 is no text"),
        ({"references": {"a": {"planned_tokens": 2**63}}}, "planned_tokens = 9223.* is no count"),
        ({"references": {"a": {"curves": 3}}}, r"references\.a: curves = 3 is no list"),
        ({"references": {"a": {"published": 3}}}, r"references\.a: published = 3 is no list"),
        ({"references": {"a": {"aliases": [3]}}}, "aliases holds 3"),
        ({"references": {"a": {"seams": ["x"]}}}, "seams holds 'x'"),
        ({"references": {"a": {"source": [], "curves": [{"metric": TRAIN}]}}}, r"no source \[\]"),
        ({"measures": {"a": {"facts": 3}}}, "facts = 3 is no table"),
        ({"references": {"a": {"curves": [7]}}}, "curve 1: 7 where a table was expected"),
        ({"references": {"a": {"published": [{"metric": "m"}]}}}, r"\['source', 'value'\] missing"),
        ({"sources": {"s": {"licence": "MIT"}}}, r"sources\.s: \['source'\] missing"),
        ({"sources": {"s": {"source": "x", "license": "MIT"}}}, "'license'; did you mean licence"),
    ],
)
def test_a_broken_index_is_refused(folder: Path, table: dict[str, Any], said: str):
    write(folder, **{"references": {}, **table})
    with pytest.raises(DataError, match=said) as error:
        reference.names()
    assert str(folder / "index.toml") in str(error.value)
    assert "evalmon reference verify" in str(error.value)
    (fault,) = reference.verify()
    assert (fault.reference, fault.file) == ("", folder / "index.toml")


def test_curves_that_cannot_be_told_apart_are_refused(folder: Path):
    make(folder, sampling="by hand")
    with pytest.raises(DataError, match=r"curve 1: sampling 'by hand' is none of"):
        reference.load("mine")
    shutil.rmtree(folder)
    make(folder, metric=C4)
    with pytest.raises(DataError, match=rf"curve 2: {C4} a second time"):
        reference.load("mine")


def test_an_index_that_is_no_toml_is_refused(folder: Path):
    folder.mkdir()
    (folder / "index.toml").write_text("a = ")
    with pytest.raises(DataError, match=r"index\.toml: cannot be read"):
        reference.names()


def test_a_changed_index_is_read_again(folder: Path):
    make(folder)
    assert reference.find("mine").model == ""
    text = (folder / "index.toml").read_text()
    (folder / "index.toml").write_text(text.replace('source = "s"', 'source = "s"\nmodel = "m"', 1))
    assert reference.find("mine").model == "m"


def test_verify_finds_strays_and_names_used_twice(folder: Path):
    make(folder)
    assert reference.verify() == ()
    stray = folder / "mine" / "old.csv"
    stray.write_text(ROWS)
    (fault,) = reference.verify()
    assert (fault.file, "in no index" in fault.message) == (stray, True)
    stray.unlink()
    text = (folder / "index.toml").read_text().replace("Mine/A", "OLMO2-7B-stage1")
    (folder / "index.toml").write_text(text)
    (fault,) = reference.verify()
    assert "'OLMO2-7B-stage1' is also olmo2-7b-stage1" in fault.message
    with pytest.raises(ConfigError, match="no reference 'nobody'"):
        reference.verify(["nobody"])


def test_found_beside_the_package_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Path:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(reference.resources, "files", missing)
    assert "olmo3-7b-stage1" in reference.names()


def test_an_installation_without_curves_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reference.resources, "files", lambda name: tmp_path / name)
    with pytest.raises(DataError, match=r"no index\.toml; install evalmon again"):
        reference.names()


def test_the_usual_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(reference.FOLDER_VARIABLE, raising=False)
    assert reference.user_folder().parts[-2:] == ("evalmon", "reference_curves")


def broken_by_text(folder: Path) -> None:
    (folder / "index.toml").write_text("[[[broken")


def broken_by_bytes(folder: Path) -> None:
    (folder / "index.toml").write_bytes(b"\xff\xfe\x00")


def broken_by_a_folder(folder: Path) -> None:
    (folder / "index.toml").unlink()
    (folder / "index.toml").mkdir()


def broken_by_a_pipe(folder: Path) -> None:
    (folder / "index.toml").unlink()
    os.mkfifo(folder / "index.toml")


def removed(folder: Path) -> None:
    (folder / "index.toml").unlink()


@pytest.mark.parametrize(
    "damage", [broken_by_text, broken_by_bytes, broken_by_a_folder, broken_by_a_pipe, removed]
)
def test_a_broken_index_of_the_users_leaves_ours_usable(folder: Path, damage: Any):
    make(folder)
    damage(folder)
    found, (fault,) = reference.readable()
    assert len(found) == 13
    assert (fault.reference, fault.file) == ("", folder / "index.toml")
    assert str(folder) in fault.message
    assert reference.verify() == (fault,)
    assert reference.verify(["olmo3-7b-stage1"]) == ()
    (named,) = reference.verify(["mine"])
    assert (named.reference, named.file) == ("mine", fault.file)
    assert fault.message in named.message
    assert reference.find("olmo3-7b-stage1").name == "olmo3-7b-stage1"
    with pytest.raises(DataError, match="no reference 'mine' in what can be read"):
        reference.load("mine")


def test_a_missing_index_names_the_curves_that_lie_there(folder: Path):
    make(folder)
    removed(folder)
    (fault,) = reference.verify()
    assert fault.message == (
        f"{folder}: curves (mine) and no index.toml; restore it, or remove them and add them again"
    )


def test_a_folder_that_the_variable_names_in_vain_is_refused(folder: Path):
    with pytest.raises(ConfigError, match=rf"{reference.FOLDER_VARIABLE}={folder}: no such folder"):
        reference.verify()
    folder.mkdir()
    assert reference.verify() == ()
    assert reference.missing_folder() == ""


def test_a_pipe_in_place_of_a_curve_is_refused_and_not_waited_for(folder: Path):
    make(folder)
    file = folder / "mine" / "train.ce_nats.csv"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=r"train\.ce_nats\.csv: no file but a folder or a pipe"):
        reference.load("mine")
    assert [fault.file for fault in reference.verify()] == [file]
