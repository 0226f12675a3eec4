import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidName
from holdfast.model.names import QueueRef, parse_name, parse_ref

ALPHABET = string.ascii_letters + string.digits + "._-"


@pytest.mark.spec("1.2")
@given(st.text(ALPHABET, min_size=1, max_size=128).filter(lambda name: not name.startswith(".")))
def test_a_name_is_1_to_128_letters_digits_dots_underscores_and_dashes(name: str) -> None:
    assert parse_name("queue", name) == name


@pytest.mark.spec("1.2")
@given(st.text())
def test_no_other_text_is_a_name(text: str) -> None:
    is_name = 1 <= len(text) <= 128 and set(text) <= set(ALPHABET) and not text.startswith(".")
    if is_name:
        assert parse_name("queue", text) == text
    else:
        with pytest.raises(InvalidName):
            parse_name("queue", text)


@pytest.mark.parametrize("name", ["a", "A", "0", "_", "-", "a.", "a..b", "-rf", "x" * 128, "CON", "None", "null"])
def test_an_odd_name_within_the_rules_is_a_name(name: str) -> None:
    assert parse_name("queue", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".hidden", "../etc/passwd", "a/b", "a\\b", "a b", " a", "a ", "a\n", "\na", "a\r", "a\t",
        "a\x00", "a\x7f", "a\x1b[31m", "a\u2028", "a\u202e", "\u0430bc", "é", "a\u0301", "\uff11", "\u017f", "\u212a",
        "🦀", "\ud800", "a;b", "a'--", 'a"', "a`", "$(a)", "${a}", "a{b}", "a*", "a?", "a%2e", "a:b", "a@b", "a#b",
        "a&b", "a=b", "a,b", "a+b", "<a>", "a|b", "x" * 129, "x" * 1_000_000,
    ],
    ids=lambda name: repr(name)[:20].encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_a_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_name("queue", name)


@pytest.mark.parametrize(
    "value", [None, 0, 1, True, 1.5, b"a", bytearray(b"a"), [], ["a"], {}, ("a",), object], ids=str
)
def test_what_is_not_text_is_no_name(value: object) -> None:
    with pytest.raises(InvalidName):
        parse_name("queue", value)


@pytest.mark.spec("1.2")
@given(st.text(min_size=1))
def test_a_refused_name_cannot_write_a_log_line_of_its_own(text: str) -> None:
    with pytest.raises(InvalidName) as refused:
        parse_name("tenant", "/" + text)
    message = refused.value.message
    assert refused.value.facts == {"kind": "tenant"}
    assert message.startswith("tenant ")
    assert len(message) < 300
    assert message.isprintable()


@pytest.mark.spec("1.1")
def test_a_tenant_and_a_queue_left_out_are_default() -> None:
    assert parse_ref() == QueueRef() == QueueRef("default", "default")
    assert parse_ref(queue="mail") == QueueRef("default", "mail")
    assert str(parse_ref("acme", "mail")) == "acme/mail"


@pytest.mark.parametrize(("tenant", "queue", "kind"), [("a/b", "ok", "tenant"), ("ok", "a/b", "queue")])
def test_the_refusal_says_which_name_it_was(tenant: str, queue: str, kind: str) -> None:
    with pytest.raises(InvalidName) as refused:
        parse_ref(tenant, queue)
    assert refused.value.facts == {"kind": kind}
