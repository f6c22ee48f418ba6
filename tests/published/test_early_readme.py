"""The earliest published README, sentence by sentence, and the tests that hold us to it.

A sentence is cited by its section and a few of its words. Where the later contract overrules one, `instead`
says how, and the tests are of that.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
SECTIONS = (
    "Routemaster",
    "Channels and queues",
    "Authentication, security.",
    "Publication (creating channels)",
    "Pushing",
    "Subscription",
    "Pulling",
    "Monitoring",
)
CHANNEL = "tests/web/test_channel.py"
FORMATS = "tests/worker/test_formats.py"


class Sentence(NamedTuple):
    section: str
    words: str  # how it begins, or what it is about
    tests: tuple[str, ...]
    instead: str = ""  # what the later contract says, where that is something else


READ = [
    Sentence(
        "Routemaster",
        "An event bus over HTTP",
        ("tests/acceptance/test_1_publish_and_receive.py::test_the_first_event",),
    ),
    # Channels and queues
    Sentence(
        "Channels and queues",
        "inbound events are sent to channels",
        (f"{CHANNEL}::test_an_event_is_taken_with_204",),
    ),
    Sentence(
        "Channels and queues",
        "one channel per domain concept",
        (f"{FORMATS}::test_several_channels_in_one_delivery", f"{CHANNEL}::test_a_bad_name_is_400"),
    ),
    Sentence(
        "Channels and queues",
        "only one client may publish",
        (
            f"{CHANNEL}::test_the_same_topics_in_both_dialects",
            "tests/web/test_ownership.py::test_another_client_is_refused",
        ),
    ),
    Sentence(
        "Channels and queues",
        "each channel fans out",
        (
            f"{FORMATS}::test_both_formats_of_one_topic_side_by_side",
            "tests/worker/test_delivery.py::test_every_subscriber_gets_every_event",
        ),
    ),
    Sentence(
        "Channels and queues",
        "exactly one queue for a subscriber, from several channels",
        (
            f"{FORMATS}::test_several_channels_in_one_delivery",
            "tests/web/test_named.py::test_each_has_its_own_list_callback_and_copies",
        ),
        instead="Push subscriptions: a client may hold several by name; /queue knows the one without",
    ),
    Sentence(
        "Channels and queues",
        "a subscriber can catch up",
        (
            "tests/worker/test_retries.py::test_a_callback_that_is_put_right_gets_what_waited",
            "tests/web/test_operating.py::test_paused_it_gets_nothing_and_resumed_all_of_it",
        ),
    ),
    # Authentication
    Sentence(
        "Authentication, security.",
        "HTTP Basic",
        ("tests/web/test_credentials.py::test_basic_is_known_in_any_case",),
    ),
    Sentence(
        "Authentication, security.",
        "username ignored, password per client",
        (
            "tests/web/test_credentials.py::test_the_token_may_be_the_password_whatever_the_username",
            "tests/web/test_credentials.py::test_the_username_is_looked_at_first",
        ),
        instead="Who may do what: the token is the username or the password, the username is looked at first",
    ),
    Sentence(
        "Authentication, security.",
        "308 over non-SSL connections",
        (
            "tests/web/test_tls.py::test_plain_requests_are_sent_to_https",
            "tests/web/test_tls.py::test_it_is_required_where_others_can_reach_it",
        ),
        instead="Who may do what: while ROUTEMASTER_REQUIRE_TLS is on, which is not the default on loopback",
    ),
    # Publication
    Sentence(
        "Publication (creating channels)",
        "implicit with the first event",
        (f"{CHANNEL}::test_an_event_is_taken_with_204",),
    ),
    Sentence(
        "Publication (creating channels)",
        "only one client can push",
        (
            f"{CHANNEL}::test_the_same_topics_in_both_dialects",
            "tests/web/test_ownership.py::test_of_two_who_race_exactly_one_wins",
        ),
    ),
    # Pushing
    Sentence(
        "Pushing",
        "POST /channel/:name with event and url",
        (f"{CHANNEL}::test_an_event_is_taken_with_204",),
    ),
    Sentence("Pushing", ":name is limited to 32 characters", (f"{CHANNEL}::test_a_bad_name_is_400",)),
    Sentence(
        "Pushing",
        "<type> is one of three",
        (
            f"{CHANNEL}::test_an_event_is_taken_with_204",
            f"{CHANNEL}::test_what_is_not_exactly_an_event_is_400",
        ),
    ),
    Sentence(
        "Pushing",
        "<url>, maximum 1024 characters",
        (
            f"{CHANNEL}::test_an_url_of_1024_characters_fits",
            f"{CHANNEL}::test_what_is_not_exactly_an_event_is_400",
        ),
    ),
    Sentence(
        "Pushing",
        "the response is always empty",
        (
            f"{CHANNEL}::is_empty",
            f"{CHANNEL}::test_who_may_not_is_told_so_silently",
            f"{CHANNEL}::test_other_methods_are_405",
            f"{CHANNEL}::test_too_large_a_body_is_413",
            f"{CHANNEL}::test_while_the_store_is_away_it_is_503_and_empty",
        ),
    ),
    Sentence("Pushing", "204: pushed", (f"{CHANNEL}::test_an_event_is_taken_with_204",)),
    Sentence(
        "Pushing",
        "400: bad name, type, URL, or extra fields",
        (
            f"{CHANNEL}::test_a_bad_name_is_400",
            f"{CHANNEL}::test_what_is_not_exactly_an_event_is_400",
            f"{CHANNEL}::test_what_is_no_json_is_400",
        ),
    ),
    Sentence(
        "Pushing",
        "403: bad credentials, or another publisher",
        (
            f"{CHANNEL}::test_the_same_topics_in_both_dialects",
            f"{CHANNEL}::test_who_may_not_is_told_so_silently",
        ),
        instead="Who may do what: a missing or unknown credential gets 401, a known one that may not 403",
    ),
    # Subscription
    Sentence(
        "Subscription",
        "creates a queue, which starts accumulating",
        (f"{CHANNEL}::test_subscribing_is_answered_204", f"{FORMATS}::test_200_and_204_acknowledge"),
    ),
    Sentence(
        "Subscription",
        "the queue is a singleton",
        (f"{CHANNEL}::test_to_one_that_exists_it_adds_and_changes_nothing_else",),
        instead="Push subscriptions: further ones have names; /queue refuses a name",
    ),
    Sentence(
        "Subscription",
        "only from their own queue",
        ("tests/web/test_named.py::test_only_clients_operate_their_own_and_only_root_anybodys",),
    ),
    Sentence(
        "Subscription",
        "POST /queue with five fields",
        (
            f"{CHANNEL}::test_subscribing_is_answered_204",
            f"{CHANNEL}::test_what_is_malformed_or_extra_is_400",
            f"{CHANNEL}::test_what_is_missing_is_400",
        ),
    ),
    Sentence(
        "Subscription",
        "events from the named channels",
        (f"{FORMATS}::test_several_channels_in_one_delivery",),
    ),
    Sentence(
        "Subscription",
        "POSTed at most every <t>, default 500",
        (
            f"{CHANNEL}::test_timeout_and_max_are_kept",
            f"{CHANNEL}::test_null_timeout_and_max_count_as_absent",
            "tests/worker/test_batching.py::test_it_goes_when_its_timeout_is_over_and_not_before",
        ),
        instead="A delivery: a batch goes when it is full, or <t> after its first event",
    ),
    Sentence(
        "Subscription",
        "at most <n> in a batch, default 100",
        (
            f"{CHANNEL}::test_timeout_and_max_are_kept",
            "tests/worker/test_delivery.py::"
            "test_events_come_in_the_order_of_reception_and_at_most_max_at_once",
        ),
    ),
    Sentence(
        "Subscription",
        "<uuid> is a Basic password",
        (
            f"{FORMATS}::test_a_delivery_has_just_the_fields_of_the_dialect",
            "tests/published/test_receivers.py::test_the_first_receivers_read_the_password",
        ),
    ),
    Sentence(
        "Subscription",
        "the response is always empty",
        (
            f"{CHANNEL}::is_empty",
            f"{CHANNEL}::test_who_may_not_subscribe_is_told_so_silently",
            f"{CHANNEL}::test_too_large_a_subscription_is_413",
        ),
    ),
    Sentence(
        "Subscription",
        "no side effect if already subscribed",
        (
            f"{CHANNEL}::test_to_one_that_exists_it_adds_and_changes_nothing_else",
            "tests/store/test_options.py::test_to_one_that_is_there_it_adds_topics_and_changes_nothing_else",
        ),
    ),
    Sentence("Subscription", "204: subscribed", (f"{CHANNEL}::test_subscribing_is_answered_204",)),
    Sentence(
        "Subscription",
        "400: bad callback, unknown channels",
        (
            f"{CHANNEL}::test_what_is_malformed_or_extra_is_400",
            f"{CHANNEL}::test_an_unknown_channel_is_404_and_nothing_is_made",
        ),
        instead="Push subscriptions: an unknown channel gets the 404 that the next line has for it",
    ),
    Sentence(
        "Subscription",
        "404: no such channel",
        (f"{CHANNEL}::test_an_unknown_channel_is_404_and_nothing_is_made",),
    ),
    # Pulling
    Sentence(
        "Pulling",
        "clients receive an HTTPS request",
        (
            f"{FORMATS}::test_a_delivery_has_just_the_fields_of_the_dialect",
            "tests/web/test_tls.py::test_callbacks_are_https_too_while_it_is_on",
        ),
        instead="Who may do what: callbacks must be https while TLS is required",
    ),
    Sentence(
        "Pulling",
        "completed, the events are deleted",
        (f"{FORMATS}::test_200_and_204_acknowledge",),
    ),
    Sentence(
        "Pulling",
        "otherwise resent at the next interval",
        (
            f"{FORMATS}::test_nothing_else_does",
            "tests/worker/test_retries.py::test_the_first_retry_waits_at_least_the_timeout",
        ),
        instead="A delivery: sent again later, first after at least the timeout",
    ),
    Sentence(
        "Pulling",
        "POST <callback> with channel, event, url, t",
        (
            f"{FORMATS}::test_a_delivery_has_just_the_fields_of_the_dialect",
            f"{FORMATS}::test_every_type_in_the_words_of_the_dialect",
        ),
    ),
    Sentence(
        "Pulling",
        "<t>: when it was originally received",
        (f"{FORMATS}::test_a_delivery_has_just_the_fields_of_the_dialect",),
    ),
    Sentence("Pulling", "200, 204: acknowledged", (f"{FORMATS}::test_200_and_204_acknowledge",)),
    Sentence(
        "Pulling",
        "anything else: failure",
        (
            f"{FORMATS}::test_nothing_else_does",
            "tests/worker/test_retries.py::test_whatever_is_not_2xx_is_a_failure",
        ),
    ),
    # Monitoring
    Sentence(
        "Monitoring",
        "still to be done",
        (
            "tests/web/test_monitoring.py::test_events_are_counted_as_they_wait_and_go",
            "tests/web/test_topics.py::test_every_topic_has_every_key",
        ),
        instead="Monitoring: topics, subscriptions, pulse and health",
    ),
]


def functions_in(path: str) -> set[str]:
    file = ROOT / path
    assert file.is_file(), f"there is no {path}"
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("sentence", READ, ids=lambda sentence: f"{sentence.section}: {sentence.words}")
def test_each_sentence_has_tests_that_are_there(sentence: Sentence):
    assert sentence.tests
    for name in sentence.tests:
        path, _, function = name.partition("::")
        assert function in functions_in(path), f"{name}, of {sentence.words!r}, is not there"
    assert any("::test_" in name for name in sentence.tests)


def test_every_section_that_says_something_is_there_and_in_order():
    assert tuple(dict.fromkeys(sentence.section for sentence in READ)) == SECTIONS
    assert len({(sentence.section, sentence.words) for sentence in READ}) == len(READ)


def test_a_test_that_is_gone_would_be_found():
    assert "test_no_such_thing" not in functions_in(CHANNEL)
    with pytest.raises(AssertionError):
        functions_in("tests/web/test_no_such_file.py")
