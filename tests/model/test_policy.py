from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidArgument
from holdfast.model.parsing.durations import MAX_MS
from holdfast.model.policy import Limits, OnTtl, QueuePolicy, Quotas, TenantConfig, merge

WHOLE_NUMBERS = ["lease_ms", "max_lease_ms", "max_retries", "backoff_base_ms", "backoff_cap_ms", "ttl_ms",
                 "dedup_window_ms", "keep_succeeded_ms", "max_claims", "max_enqueues"]  # fmt: skip
AT_LEAST_ONE = {"lease_ms", "max_lease_ms", "ttl_ms"}
MAY_BE_NONE = {"ttl_ms", "max_claims", "max_enqueues"}


def test_the_defaults_are_those_of_the_specification() -> None:
    assert msgspec.to_builtins(QueuePolicy()) == {
        "lease_ms": 5_000,
        "max_lease_ms": 12 * 3_600_000,
        "max_retries": 3,
        "backoff_base_ms": 500,
        "backoff_cap_ms": 30_000,
        "ttl_ms": None,
        "on_ttl": "dead_letter",
        "dedup_window_ms": 24 * 3_600_000,
        "keep_succeeded_ms": 0,
        "max_claims": None,
        "max_enqueues": None,
        "limits": msgspec.to_builtins(Limits()),
    }


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{name: st.integers(1, MAX_MS) for name in WHOLE_NUMBERS},
            "on_ttl": st.sampled_from(["dead_letter", "drop"]),
        },
    ),
    st.fixed_dictionaries({}, optional={name: st.integers(1, MAX_MS) for name in WHOLE_NUMBERS}),
)
def test_what_is_given_changes_and_the_rest_stays(first: dict[str, Any], second: dict[str, Any]) -> None:
    merged = merge(merge(QueuePolicy(), first), second)

    assert msgspec.to_builtins(merged) == {**msgspec.to_builtins(QueuePolicy()), **first, **second}


def test_a_merge_leaves_the_old_policy_as_it_was() -> None:
    old = QueuePolicy()
    merge(old, {"max_retries": 9, "limits": {"burst_s": 2.0}})
    assert old == QueuePolicy()


def test_nested_documents_merge_field_by_field() -> None:
    config = merge(TenantConfig(), {"quotas": {"max_messages": 5}, "limits": {"read_ops_per_s": 1.5}})
    config = merge(config, {"quotas": {"max_bytes": 7}, "weight": 3})

    assert config == TenantConfig(
        weight=3, quotas=Quotas(max_messages=5, max_bytes=7), limits=Limits(read_ops_per_s=1.5)
    )


def test_a_nested_document_may_be_given_as_what_an_answer_held() -> None:
    assert merge(QueuePolicy(), {"limits": Limits(burst_s=4.0)}).limits == Limits(burst_s=4.0)


@pytest.mark.parametrize("value", [None, 3, "x", [1], True])
def test_a_nested_document_is_a_document(value: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        merge(QueuePolicy(), {"limits": value})
    assert refused.value.facts == {"field": "limits"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"retries": 3}, "retries"),
        ({"": 1}, ""),
        ({"Max_Retries": 1}, "Max_Retries"),
        ({"__class__": 1}, "__class__"),
        ({"limits": {"ops": 1}}, "limits.ops"),
        ({"lease_ms": 1, "limits": {"limits": {}}}, "limits.limits"),
    ],
)
def test_an_unknown_field_is_refused_by_its_whole_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        merge(QueuePolicy(), changes)
    assert refused.value.facts == {"field": field}
    assert repr(field) in refused.value.message


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_a_number_has_its_range(name: str) -> None:
    least = 1 if name in AT_LEAST_ONE else 0

    assert getattr(merge(QueuePolicy(), {name: least}), name) == least
    assert getattr(merge(QueuePolicy(), {name: MAX_MS}), name) == MAX_MS
    for beyond in (least - 1, -1, -(10**30), MAX_MS + 1, 10**30):
        with pytest.raises(InvalidArgument) as refused:
            merge(QueuePolicy(), {name: beyond})
        assert refused.value.facts == {"field": name}


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
@pytest.mark.parametrize("value", [True, False, "5", 1.5, float("nan"), [], {}, b"5"], ids=repr)
def test_a_value_of_another_type_is_refused_and_a_truth_value_is_not_a_number(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=name):
        merge(QueuePolicy(), {name: value})


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_none_is_a_value_where_it_means_unlimited_and_refused_elsewhere(name: str) -> None:
    if name in MAY_BE_NONE:
        assert getattr(merge(merge(QueuePolicy(), {name: 5}), {name: None}), name) is None
    else:
        with pytest.raises(InvalidArgument, match=name):
            merge(QueuePolicy(), {name: None})


def test_what_a_ttl_leads_to_is_one_of_two_words() -> None:
    assert merge(QueuePolicy(), {"on_ttl": "drop"}).on_ttl is OnTtl.DROP
    assert merge(QueuePolicy(on_ttl=OnTtl.DROP), {"on_ttl": OnTtl.DEAD_LETTER}).on_ttl is OnTtl.DEAD_LETTER
    for wrong in ("DROP", "delete", "", None, 1, True):
        with pytest.raises(InvalidArgument, match="on_ttl"):
            merge(QueuePolicy(), {"on_ttl": wrong})


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, None, "1"])
def test_a_weight_is_a_whole_number_above_zero(weight: object) -> None:
    with pytest.raises(InvalidArgument, match="weight"):
        merge(TenantConfig(), {"weight": weight})


@given(
    st.dictionaries(
        st.sampled_from([*QueuePolicy.__struct_fields__, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=12), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
def test_any_document_at_all_is_merged_or_refused(changes: dict[str, Any]) -> None:
    try:
        merged = merge(QueuePolicy(), changes)
    except InvalidArgument:
        return
    assert merge(merged, {}) == merged
    assert merged.lease_ms >= 1


@pytest.mark.parametrize("name", ["max_messages", "max_bytes", "max_message_bytes"])
def test_a_quota_on_messages_may_refuse_one_even_if_it_is_0(name: str) -> None:
    assert Quotas(**{name: 0}).limits_messages


def test_quotas_on_queues_and_times_refuse_no_message() -> None:
    assert not Quotas(max_queues=1, default_ttl_ms=1).limits_messages
