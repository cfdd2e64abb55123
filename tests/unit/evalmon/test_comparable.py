"""Run and reference made comparable before they are judged."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evalmon import comparable
from evalmon.sources import Kind, Source
from evalmon.types import Curve, Json, RunCurves, Series

METRIC = "eval/lm/c4_en-validation/ce_nats"
AI2 = "eval/lm/c4_en-validation/olmo_core_ce_nats"


def source(values: dict[str, float], **facts: Json) -> Source:
    at = np.array([10, 20])
    curves = {
        metric: Curve(Series(metric, at, at, np.full(2, value)), facts)
        for metric, value in values.items()
    }
    return Source(Kind.TABLE, str(Path("t.csv")), RunCurves("r", "t.csv", curves))


def test_ai2_s_mean_is_laid_over_ai2_s_curves():
    run = source({METRIC: 2.7, AI2: 2.693}, divisor="predicted_tokens")
    reference = source({METRIC: 2.7}, divisor="all_tokens")
    chosen = comparable.by_divisor(run, reference, METRIC).curves.curves[METRIC]
    assert chosen.series.metric == METRIC
    assert chosen.series.values.tolist() == [2.693, 2.693]
    assert chosen.facts["divisor"] == "all_tokens"


def test_the_mean_of_predicted_tokens_stays_where_nothing_asks_for_another():
    both = source({METRIC: 2.7, AI2: 2.693}, divisor="predicted_tokens")
    reference = source({METRIC: 2.7}, divisor="predicted_tokens")
    assert comparable.by_divisor(both, reference, METRIC) is both
    assert comparable.by_divisor(both, None, METRIC) is both
    one = source({METRIC: 2.7}, divisor="predicted_tokens")
    asked = source({METRIC: 2.7}, divisor="all_tokens")
    assert comparable.by_divisor(one, asked, METRIC) is one


def test_no_evaluation_is_lost_to_the_other_mean():
    """Where one of them lacks it, the mean of predicted tokens is judged at all of them."""
    run = source({METRIC: 2.7, AI2: 2.693}, divisor="predicted_tokens")
    reference = source({METRIC: 2.7}, divisor="all_tokens")
    curves = dict(run.curves.curves)
    part = replace(curves[AI2], series=curves[AI2].series.until(10))
    lacking = replace(run, curves=replace(run.curves, curves={**curves, AI2: part}))
    assert comparable.by_divisor(lacking, reference, METRIC) is lacking
    beyond = replace(curves[METRIC], series=curves[METRIC].series.until(10))
    more = replace(run, curves=replace(run.curves, curves={**curves, METRIC: beyond}))
    chosen = comparable.by_divisor(more, reference, METRIC).curves.curves[METRIC].series
    assert (chosen.steps.tolist(), chosen.values.tolist()) == ([10], [2.693])
