"""The dictionary of metric names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalmon.errors import ConfigError
from evalmon.tags import (
    SOURCES,
    Difference,
    counts_from_zero,
    differences,
    look_up,
    nearest,
    sources_of,
    token_tags,
)

C4 = "eval/lm/c4_en-validation/ce_nats"
TASKS = ("arc_easy", "arc_challenge", "boolq", "hellaswag", "piqa", "sciq", "winogrande")
NAMES: dict[str, dict[str, str]] = {
    "olmo1": {
        "train/CrossEntropyLoss": "train/ce_nats",
        "train/ZLoss": "train/z_nats",
        "optim/learning_rate_group0": "optim/lr",
        "eval/c4_en-validation/CrossEntropyLoss": C4,
        "eval/dolma_common-crawl-validation/CrossEntropyLoss":
            "eval/lm/dolma_common-crawl-validation/ce_nats",
        "eval/downstream/arc_easy_acc": "eval/downstream/arc_easy_0shot/acc",
        "eval/downstream/hellaswag_len_norm": "eval/downstream/hellaswag_0shot/len_norm",
        "eval/downstream/openbook_qa_len_norm": "eval/downstream/openbookqa_0shot/len_norm",
        "eval/downstream/arc_easy_rc_5shot_acc": "eval/downstream/arc_easy_rc_5shot/acc",
        "eval/downstream_bpb/arc_easy_rc_5shot_bpb_bpb": "eval/downstream/arc_easy_rc_5shot/bpb",
    },
    "olmo_core": {
        "train/CE loss": "train/ce_nats",
        "train/Z loss": "train/z_nats",
        "optim/LR (group 0)": "optim/lr",
        "optim/LR": "optim/lr",
        "eval/lm/c4_en-validation/CE loss": C4,
        "eval/downstream/arc_easy (accuracy)": "eval/downstream/arc_easy_0shot/acc",
        "eval/downstream/arc_challenge_test_mc_5shot_fast (accuracy)":
            "eval/downstream/arc_challenge_test_mc_5shot_fast/acc",
        "eval/downstream/hellaswag_rc_5shot (length-normalized accuracy)":
            "eval/downstream/hellaswag_rc_5shot/len_norm",
        "eval/downstream/arc_easy_test_rc_5shot (BPB)":
            "eval/downstream/arc_easy_test_rc_5shot/bpb",
        "eval/downstream/piqa (CE loss)": "eval/downstream/piqa_0shot/ce_nats",
        "eval/downstream/arc_easy (accuracy v2)": "eval/downstream/arc_easy_0shot/acc",
        "eval/downstream/hellaswag_rc_5shot (length-normalized accuracy v2)":
            "eval/downstream/hellaswag_rc_5shot/len_norm",
        "eval/downstream/arc_easy (BPB v2)": "eval/downstream/arc_easy_0shot/bpb",
        "eval/downstream/piqa (CE loss v2)": "eval/downstream/piqa_0shot/ce_nats",
    },
    "maxtext": {
        "learning/loss": "train/ce_nats",
        "learning/lm_loss": "train/ce_nats",
        "learning/z_loss": "train/z_nats",
        "learning/current_learning_rate": "optim/lr",
        "eval/avg_loss": C4,
    },
    "levanter": {
        "train/loss": "train/ce_nats",
        "optim/learning_rate": "optim/lr",
        "eval/c4_en/loss": C4,
        "eval/paloma/c4_en/loss": C4,
        "eval/c4_en/bpb": "eval/lm/c4_en-validation/bpb",
    },
    "torchtitan": {
        "loss_metrics/global_avg_loss": "train/ce_nats",
        "validation_metrics/loss": C4,
        "lr": "optim/lr",
    },
    "nanotron": {
        "train/lm_loss": "train/ce_nats",
        "lm_loss": "train/ce_nats",
        "lr": "optim/lr",
        "train/lr": "optim/lr",
    },
    "lm_eval": {
        "arc_easy/acc,none": "eval/downstream/arc_easy_0shot/acc",
        "hellaswag/acc_norm,none": "eval/downstream/hellaswag_0shot/len_norm",
        "hellaswag/acc_norm": "eval/downstream/hellaswag_0shot/len_norm",
    },
    "evalmon": {
        name: name
        for name in (
            "train/ce_nats", "train/z_nats", "optim/lr", C4, "eval/lm/own-text-validation/bpb",
            "eval/downstream/arc_easy_0shot/acc", "eval/downstream/arc_easy_test_rc_5shot",
        )
    },
}  # fmt: skip
UNKNOWN = (
    "perf/step_time_seconds", "learning/perplexity", "train/PPL", "train",
    "eval/loss", "eval/ema/c4_en/loss", "optim/LR (group 1)", "train/CE loss ", "Train/CE loss",
    "eval/downstream/arc_easy (soft loss)", "eval/downstream/arc_easy (soft loss v2)", "", "loss",
    "eval/downstream/arc_easy", "mmlu/acc,none", "eval/lm/c4_en/ce_nats",
)  # fmt: skip


def test_every_source_has_names_here() -> None:
    assert set(NAMES) == set(SOURCES)


@pytest.mark.parametrize(
    ("source", "tag", "metric"),
    [(source, tag, metric) for source, names in NAMES.items() for tag, metric in names.items()],
)
def test_each_name_means_one_metric_with_and_without_its_source(
    source: str, tag: str, metric: str
) -> None:
    named, unnamed = look_up(tag, source), look_up(tag)
    assert named is not None
    assert named.metric == metric
    assert named == unnamed
    assert source in sources_of(tag)
    canonical = look_up(metric)
    assert canonical is not None
    assert (canonical.metric, dict(canonical.facts)) == (metric, {})


@pytest.mark.parametrize("tag", UNKNOWN)
def test_other_names_are_not_known(tag: str) -> None:
    assert look_up(tag) is None
    assert not sources_of(tag)


@given(st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True))
def test_holdouts_of_any_name_keep_it(holdout: str) -> None:
    expected = f"eval/lm/{holdout}-validation/ce_nats"
    for tag in (
        f"eval/{holdout}-validation/CrossEntropyLoss",
        f"eval/lm/{holdout}-validation/CE loss",
    ):
        found = look_up(tag)
        assert found is not None
        assert found.metric == expected


@given(st.text(max_size=40))
def test_any_text_means_one_thing_or_nothing(tag: str) -> None:
    found = look_up(tag)
    assert found is None or look_up(found.metric) is not None


@pytest.mark.parametrize(
    ("tag", "facts"),
    [
        ("train/CE loss", {"z_loss": "excluded", "divisor": "predicted_tokens"}),
        ("train/CrossEntropyLoss", {"z_loss": "excluded", "divisor": "predicted_tokens"}),
        ("learning/loss",
         {"z_loss": "included", "z_loss_nats": 0.001, "divisor": "total_weights"}),
        ("train/loss", {}),
        ("eval/downstream/hellaswag_len_norm", {"normalization": "characters", "shots": 0}),
        ("eval/downstream/arc_easy_test_rc_5shot (accuracy)", {"shots": 5, "split": "test"}),
        ("eval/downstream/arc_easy_test_rc_5shot (accuracy v2)", {"shots": 5, "split": "test"}),
        ("eval/downstream/winogrande_val_rc_5shot (accuracy)",
         {"shots": 5, "split": "validation"}),
    ],
)  # fmt: skip
def test_facts(tag: str, facts: dict[str, object]) -> None:
    found = look_up(tag)
    assert found is not None
    assert dict(found.facts) == facts


@pytest.mark.parametrize(
    ("label", "fact", "unit"),
    [("length-normalized accuracy", "normalization", "characters"),
     ("CE loss", "divisor", "characters"), ("BPB", "divisor", "bytes")],
)  # fmt: skip
def test_a_number_that_counts_the_space_before_an_answer_is_another(
    label: str, fact: str, unit: str
) -> None:
    plain, v2 = (look_up(f"eval/downstream/piqa_rc_5shot ({label}{end})") for end in ("", " v2"))
    assert plain is not None
    assert v2 is not None
    assert plain.metric == v2.metric
    (found,) = differences(plain.facts, v2.facts)
    assert found == Difference(fact, unit, f"{unit}_with_space", "")
    assert (plain.goes_first, v2.goes_first) == (False, True)


def test_an_accuracy_is_the_same_number_under_either_label() -> None:
    plain, v2 = (look_up(f"eval/downstream/arc_easy (accuracy{end})") for end in ("", " v2"))
    assert plain is not None
    assert v2 is not None
    assert (plain.metric, plain.facts) == (v2.metric, v2.facts)


@pytest.mark.parametrize("tag", ["eval/downstream/arc_easy_bpb", "eval/downstream/arc_easy (BPB)"])
def test_both_trainers_of_ai2_leave_the_space_out_of_bits_per_byte(tag: str) -> None:
    found = look_up(tag)
    assert found is not None
    assert found.facts["divisor"] == "bytes"


def test_a_length_norm_whose_release_is_not_known_says_what_is_assumed() -> None:
    found = look_up("eval/downstream/piqa (length-normalized accuracy)")
    assert found is not None
    assert found.note == "does not tell whether an answer's leading space counts: taken as not"


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (("train/loss", "optim/learning_rate"), "levanter"),
        (("eval/c4_en/loss", "throughput/mfu"), "levanter"),
        (("learning/loss", "eval/avg_loss"), "maxtext"),
        (("train/loss",), ""),  # anybody's
        (("train/loss", "perf/mfu"), ""),
        (("learning/loss", "eval/c4_en/loss"), ""),  # of two trainers
        (("train/CE loss",), ""),
        (("train/ce_nats",), ""),
        ((), ""),
    ],
)
def test_trainers_that_count_steps_from_0(names: tuple[str, ...], trainer: str) -> None:
    assert counts_from_zero(names) == trainer
    assert counts_from_zero(reversed(names)) == trainer


def test_a_trainer_that_is_known_need_not_be_told_by_names() -> None:
    assert counts_from_zero(["train/loss"], "levanter") == "levanter"
    assert counts_from_zero(["learning/loss"], "olmo_core") == ""


def test_a_validation_loss_without_a_text_says_so() -> None:
    for tag in ("eval/avg_loss", "validation_metrics/loss"):
        found = look_up(tag)
        assert found is not None
        assert found.note == "names no text: taken as C4's validation set"


def test_an_unknown_source_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match="'maxtxt' of metric names: not known; nearest is 'maxtext'"
    ):
        look_up("learning/loss", "maxtxt")


def test_a_name_of_another_source_is_not_known() -> None:
    assert look_up("learning/loss", "olmo_core") is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("train/ce_nat", "train/ce_nats"), ("train/CELoss", "train/CE loss"),
     ("learning/los", "learning/loss"), ("completely else", "train/ce_nats")],
)  # fmt: skip
def test_nearest(wrong: str, right: str) -> None:
    assert right in nearest(wrong)


def test_differences_say_what_could_be_done() -> None:
    mine = {
        "z_loss": "included", "z_loss_nats": 0.0012, "tokenizer": "a", "shots": 0, "items": 10,
        "divisor": "total_weights", "data": "c4",
    }  # fmt: skip
    theirs = {
        "z_loss": "excluded", "tokenizer": "b", "shots": 5, "items": 20, "split": "test",
        "divisor": "predicted_tokens", "data": "c4",
    }  # fmt: skip
    assert differences(mine, theirs) == (
        Difference("shots", 0, 5, ""),
        Difference("tokenizer", "a", "b", "bpb"),
        Difference("z_loss", "included", "excluded", "correction", 0.0012),
    )
    back = differences(theirs, mine)
    assert [(item.fact, item.remedy, item.nats) for item in back] == [
        ("shots", "", 0.0), ("tokenizer", "bpb", 0.0), ("z_loss", "correction", 0.0012)
    ]  # fmt: skip
    assert differences(mine, mine) == ()
    assert differences(mine, {}) == ()


def test_another_divisor_is_no_correction() -> None:
    (found,) = differences({"divisor": "characters"}, {"divisor": "predicted_tokens"})
    assert found.remedy == ""


def test_tokens_have_names() -> None:
    assert {"throughput/total tokens", "throughput/total_tokens", "tokens"} <= set(token_tags())
    assert not any(sources_of(name) for name in token_tags())


@pytest.mark.parametrize("other", ["predicted_tokens", "total_weights"])
def test_a_zero_a_document_in_the_mean_is_an_offset_of_known_size(other: str):
    (found,) = differences({"divisor": other}, {"divisor": "all_tokens"})
    assert (found.remedy, found.nats) == ("correction", 0.007)
    (refused,) = differences({"divisor": "characters"}, {"divisor": "all_tokens"})
    assert refused.remedy == ""
