"""The webhook: delivered means 2xx; a refusal ends, an outage does not; nothing is too long."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from evalmon.config import AlertSettings, SinkSettings
from evalmon.errors import ConfigError, DeliveryError
from evalmon.sinks import deliver
from evalmon.sinks.webhook import BODY_BYTES, SHORT_BODY_BYTES, Webhook, body
from evalmon.types import Alert

URL = "https://hooks.example/services/s3cret"
Answer = Callable[[httpx.Request], httpx.Response]


class Receiver:
    """A webhook's far end that gives prepared answers, the last one for ever."""

    def __init__(self, *answers: httpx.Response | Exception | Answer, attempts: int = 3) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.waits: list[float] = []
        self.sink = Webhook(
            SinkSettings("webhook", URL),
            AlertSettings(attempts=attempts),
            transport=httpx.MockTransport(self.answer),
            sleep=self.waits.append,
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def at_most(characters: int) -> Answer:
    """Refuse longer bodies, as chat services do."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400 if len(request.content.decode()) > characters else 204)

    return answer


def statuses(receiver: Receiver, alerts: Sequence[Alert]) -> list[tuple[str, int]]:
    return [(outcome.status, len(outcome.alert_ids)) for outcome in deliver(receiver.sink, alerts)]


def test_an_alert_is_posted_once_with_its_id_and_facts(alert: Callable[..., Alert]) -> None:
    receiver = Receiver(httpx.Response(200, text="ok"))
    receiver.sink.send([alert()])
    (request,) = receiver.requests
    assert request.headers["Idempotency-Key"] == alert().id
    assert request.headers["Content-Type"] == "application/json"
    (sent,) = receiver.bodies()
    assert sent["id"] == alert().id
    assert sent["text"] == f"{alert().title}\n{alert().message}".rstrip()
    assert sent["alerts"] == [
        {
            "id": alert().id,
            "run": "tiny-1",
            "cause": "memorization",
            "verdict": "memorization_suspected",
            "step": 70,
            "tokens": 2240,
        }
    ]


@pytest.mark.parametrize("text", ["x" * 2001, "x" * 1999 + "\N{GRINNING FACE}", '"\n' * 1500])
def test_a_body_too_long_for_the_receiver_arrives_cut_with_the_facts(
    alert: Callable[..., Alert], text: str
) -> None:
    receiver = Receiver(at_most(2000))
    assert statuses(receiver, [alert(message=text)]) == [("delivered", 1)]
    assert len(receiver.requests) == 2
    assert receiver.bodies()[1]["text"].startswith(
        "tiny-1: train loss falls and holdout loss does not follow (step 70)\n"
        "run tiny-1 | step 70 | unmatched drop +0.3124 nats\n"
    )


def test_a_full_receiver_is_left_alone_as_long_as_it_asks(alert: Callable[..., Alert]) -> None:
    busy = httpx.Response(429, headers={"Retry-After": "0.75"})
    receiver = Receiver(busy, httpx.Response(204))
    assert statuses(receiver, [alert()]) == [("delivered", 1)]
    assert (len(receiver.requests), receiver.waits) == (2, [0.75])


def test_a_long_wait_is_left_to_a_later_pass(alert: Callable[..., Alert]) -> None:
    receiver = Receiver(httpx.Response(429, headers={"Retry-After": "120"}))
    (outcome,) = deliver(receiver.sink, [alert()])
    assert (outcome.status, outcome.wait_seconds) == ("pending", 120.0)
    assert (len(receiver.requests), receiver.waits) == (1, [])


def test_a_retry_date_counts_from_the_answers_own_date(alert: Callable[..., Alert]) -> None:
    headers = {
        "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
        "Retry-After": "Wed, 21 Oct 2015 07:29:30 GMT",
    }
    receiver = Receiver(httpx.Response(429, headers=headers))
    assert [outcome.wait_seconds for outcome in deliver(receiver.sink, [alert()])] == [90.0]


@pytest.mark.parametrize("status", [302, 400, 404])
def test_a_refusal_is_tried_twice_and_then_given_up(
    alert: Callable[..., Alert], status: int
) -> None:
    receiver = Receiver(httpx.Response(status, text="no\nsuch hook"))
    (outcome,) = deliver(receiver.sink, [alert()])
    assert outcome.status == "dead"
    assert outcome.error.endswith(f"answered {status}: no such hook")
    assert len(receiver.requests) == 2


@pytest.mark.parametrize(
    "answer", [httpx.Response(500), httpx.ConnectError("refused"), httpx.ReadTimeout("")]
)
def test_an_outage_is_pending_after_the_tries_of_a_pass(
    alert: Callable[..., Alert], answer: httpx.Response | Exception
) -> None:
    receiver = Receiver(answer)
    assert statuses(receiver, [alert()]) == [("pending", 1)]
    assert len(receiver.requests) == 3


def test_an_outage_that_ends_within_a_pass_is_one_delivery(alert: Callable[..., Alert]) -> None:
    receiver = Receiver(httpx.Response(503), httpx.ConnectError("refused"), httpx.Response(204))
    assert statuses(receiver, [alert()]) == [("delivered", 1)]
    assert {request.headers["Idempotency-Key"] for request in receiver.requests} == {alert().id}


@pytest.mark.parametrize("answer", [{"ok": False, "error": "no_channel"}, {"success": False}])
def test_a_success_that_says_it_failed_is_no_delivery(
    alert: Callable[..., Alert], answer: dict[str, Any]
) -> None:
    receiver = Receiver(httpx.Response(200, json=answer))
    assert statuses(receiver, [alert()]) == [("pending", 1)]


def test_a_burst_arrives_as_one_message_with_every_fact(alert: Callable[..., Alert]) -> None:
    receiver = Receiver(httpx.Response(204), httpx.Response(500))
    alerts = [alert(n) for n in range(1, 201)]
    assert statuses(receiver, alerts) == [("delivered", 200)]
    (sent,) = receiver.bodies()
    assert sent["text"].startswith("200 alerts\n")
    assert [item["run"] for item in sent["alerts"]] == [f"tiny-{n}" for n in range(1, 201)]
    assert len(receiver.requests[0].content) <= BODY_BYTES


def test_twenty_alerts_in_one_message_name_step_metric_and_value_of_each(
    alert: Callable[..., Alert],
) -> None:
    receiver = Receiver(httpx.Response(204))
    receiver.sink.send([alert(n, "more " * 500) for n in range(1, 21)])
    (sent,) = receiver.bodies()
    for n in range(1, 21):
        assert f"run tiny-{n} | step 70 | unmatched drop +0.3124 nats" in sent["text"]


def test_a_refused_group_is_sent_one_by_one(alert: Callable[..., Alert]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        content = json.loads(request.content)
        bad = any(item["run"] == "tiny-2" for item in content["alerts"])
        return httpx.Response(400 if bad else 204)

    receiver = Receiver(answer)
    alerts = [alert(1), alert(2), alert(3)]
    assert statuses(receiver, alerts) == [("delivered", 1), ("dead", 1), ("delivered", 1)]


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("limit", [1000, SHORT_BODY_BYTES, BODY_BYTES])
def test_a_body_keeps_to_its_limit_and_is_strict_json(
    alert: Callable[..., Alert], count: int, limit: int
) -> None:
    data = body([alert(n, '"\N{SNOWMAN}\x00' * 5000) for n in range(1, count + 1)], limit)
    assert len(data) <= limit
    sent = json.loads(data, parse_constant=pytest.fail)
    hidden = count - len(sent["alerts"])
    assert (f"{hidden} of them not shown" in sent["text"]) == (hidden > 0)


def test_the_secret_in_the_url_is_not_shown(alert: Callable[..., Alert]) -> None:
    receiver = Receiver(httpx.ConnectError("refused"))
    (outcome,) = deliver(receiver.sink, [alert()])
    assert receiver.sink.key.startswith("webhook:hooks.example:")
    assert "s3cret" not in outcome.error + receiver.sink.key


@pytest.mark.parametrize("target", ["", "hooks.example/s3cret", "ftp://host/x", "http://"])
def test_a_target_that_is_no_url_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match=r"must be an http or https URL, got ") as error:
        Webhook(SinkSettings("webhook", target), AlertSettings())
    assert "s3cret" not in str(error.value)


def test_a_delivery_error_says_whether_to_try_again() -> None:
    assert DeliveryError("down").retryable
    assert not DeliveryError("refused", retryable=False).retryable
