"""Pipeline descriptions: what a file says, what it may not say, and our own runs."""

import json
import tomllib
from pathlib import Path

import pytest

from evalmon.audit import descriptions
from evalmon.audit.descriptions import read_description, read_run
from evalmon.audit.pipelines import Batch, Mix, Repeat, Shard, Shuffle, Slice, Source
from evalmon.audit.static_check import check_config
from evalmon.errors import CheckpointError, ConfigError
from evalmon.types import RunDescription


def described(tmp_path: Path, text: str, name: str = "pipeline.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def example() -> str:
    """The description of the module's docstring."""
    text = descriptions.__doc__ or ""
    block = text[text.index("hosts = 8") : text.index("``mix`` comes first")]
    return "\n".join(line.strip() for line in block.splitlines())


def run_at(path: Path, loader: str, workers: int = 0) -> RunDescription:
    run = RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="tokenizer.json", vocab_size=8,
        eos_id=0, sequence_length=4, batch_instances=64, planned_steps=32, planned_passes=1,
        source_instances=4096, hosts=8, loader=loader, seed=0, warmup_steps=0, recipe="r",
        loss={}, data="data", extra={"settings": {"workers": workers}},
    )  # fmt: skip
    run.save()
    return run


def test_the_documented_example_is_read_as_it_says_and_is_sound(tmp_path: Path) -> None:
    path = described(tmp_path, example())
    assert read_description(path).pipeline(3, 8).operations == (
        Source("tokens", 4096),
        Shuffle(34521),
        Repeat(),
        Slice(3, None, 8),
        Batch(8, drop_remainder=True),
    )
    report = check_config(str(path), None, {})
    assert (report.sound, report.hosts, report.exit_code) == (True, 8, 0)


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    toml = described(tmp_path, example())
    text = json.dumps(tomllib.loads(example()))
    same = described(tmp_path, text, "pipeline.json")
    assert read_description(toml).pipeline(1, 4) == read_description(same).pipeline(1, 4)


def test_a_shard_is_that_of_the_host_unless_it_says_another(tmp_path: Path) -> None:
    text = 'operations = [{kind = "source"}, {kind = "shard"}, {kind = "shard", count = 3}]'
    read = read_description(described(tmp_path, text)).pipeline(2, 4)
    assert read.operations[1:] == (Shard(2, 4), Shard(2, 3))


def test_components_of_a_mixture_are_pipelines_of_their_own(tmp_path: Path) -> None:
    text = """
        [[operations]]
        kind = "mix"
        weights = [0.25, 0.75]
        components = [
            [{kind = "source", name = "web"}, {kind = "shuffle", seed = 1}, {kind = "shard"}],
            [{kind = "source", name = "code"}, {kind = "shuffle", seed = "host"}],
        ]
    """
    path = described(tmp_path, text)
    mix = read_description(path).pipeline(1, 2).operations[0]
    assert isinstance(mix, Mix)
    assert mix.components[1] == (Source("code"), Shuffle(1))
    report = check_config(str(path), None, {})
    assert [(found.id, found.place) for found in report.findings if found.is_error] == [
        ("G", "component 2, operation 2 (shuffle)")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosst = 2", "nearest is 'hosts'"),
        ("hosts = 0\noperations = []", "hosts must be"),
        ("hosts = 'many'", "hosts must be int"),
        ("operations = []", "list of at least one table"),
        ("operations = [1]", r"operations\[0\] must be a table"),
        ('operations = [{kind = "suffle"}]', "nearest is 'shuffle'"),
        ('operations = [{kind = "source"}, {kind = "shuffle", sed = 1}]', "nearest is 'seed'"),
        ('operations = [{kind = "source", content = "x"}]', "'content': not known"),
        ('operations = [{kind = "source"}, {kind = "stream", a = 1}]', "has no values"),
        ('operations = [{kind = "shuffle"}]', "begin with source or mix"),
        ('operations = [{kind = "source"}, {kind = "source"}]', "have no other"),
        ('operations = [{kind = "source"}, {kind = "batch", size = 0}]', "size must be at least 1"),
        ('operations = [{kind = "source"}, {kind = "batch", size = true}]', "size must be int"),
        ('operations = [{kind = "source"}, {kind = "slice", start = "hots"}]', "must be int"),
        ('operations = [{kind = "source"}, {kind = "shard", form = "blocks"}]', "nearest is"),
        ('operations = [{kind = "mix", components = 3}]', "must be a list of lists"),
        ('operations = [{kind = "mix", components = [[]]}]', "list of at least one table"),
        ("hosts = ", "not valid TOML"),
    ],
)
def test_what_a_description_may_not_say(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_description(described(tmp_path, text))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        check_config(str(tmp_path / "absent.toml"), None, {})
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_description(described(tmp_path, "{", "a.json"))
    with pytest.raises(ConfigError, match="must be a table"):
        read_description(described(tmp_path, "[]", "a.json"))
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        check_config(str(tmp_path), None, {})
    with pytest.raises(ConfigError, match="--hosts 0"):
        check_config("a.toml", 0, {})
    with pytest.raises(ConfigError, match="only a callable takes arguments"):
        check_config(str(described(tmp_path, example())), None, {"a": 1})


@pytest.mark.parametrize("workers", [0, 3])
def test_runs_of_the_trainer_by_the_name_of_their_loader(tmp_path: Path, workers: int) -> None:
    def errors(loader: str) -> set[str]:
        run_at(tmp_path, loader, workers)
        report = check_config(str(tmp_path), None, {})
        assert report.hosts == 8
        return {found.id for found in report.findings if found.is_error}

    assert errors("batch_strided") == set()
    assert errors("double_shard") == {"K"}
    assert errors("double_shard_resume") == {"K", "L", "N"}


def test_a_run_on_other_hosts_than_it_had(tmp_path: Path) -> None:
    run_at(tmp_path, "double_shard")
    assert check_config(str(tmp_path), 1, {}).sound
    assert check_config(str(tmp_path / "run.json"), 64, {}).exit_code == 1


def test_a_loader_of_another_name_is_not_understood(tmp_path: Path) -> None:
    report = check_config(str(run_at(tmp_path, "mine").path), None, {})
    assert (report.sound, report.exit_code) == (None, 3)
    assert "loader 'mine'" in report.not_understood[0]


def test_the_sound_loader_reads_whole_batches(tmp_path: Path) -> None:
    pipeline = read_run(run_at(tmp_path, "batch_strided", 2), 1, 8)
    kinds = [operation.kind for operation in pipeline.operations]
    assert kinds == ["source", "shuffle", "batch", "repeat", "shard", "stream", "workers"]
