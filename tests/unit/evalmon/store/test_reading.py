"""What is read of many metrics at once is what is read of each."""

from dataclasses import replace
from pathlib import Path

from evalmon.store import Store
from tests import synthetic_store


def test_identities_are_those_of_the_latest_evaluation_of_each_metric(tmp_path: Path):
    with Store.open(synthetic_store.build(tmp_path, steps=(0, 100))) as store:
        run = store.describe("clean")
        _, tasks, _ = synthetic_store.evaluations(run, 50)  # between them, and stored last
        first = tasks.scores[0]
        other = replace(first, identity=replace(first.identity, data="other"))
        store.append_evaluation(replace(tasks, scores=(other, *tasks.scores[1:])))
        found = store.identities("clean")
        assert found == {
            metric: store.identity("clean", metric) for metric in store.metrics("clean")
        }
        assert found[first.metric] == other.identity
        assert [point.step for point in store.histories("clean")[first.metric]] == [50]
        assert store.identities("double-sharded")[first.metric] == first.identity


def test_scores_of_some_metrics_are_those_among_all(tmp_path: Path):
    with Store.open(synthetic_store.build(tmp_path, steps=(0,))) as store:
        whole = store.scores("clean", 0)
        wanted = (synthetic_store.HOLDOUT, whole[0].metric, "eval/lm/none")
        some = store.scores("clean", 0, metrics=wanted)
        assert some == tuple(score for score in whole if score.metric in wanted)
        assert len(some) == 2
        assert store.scores("clean", 0, metrics=()) == ()
