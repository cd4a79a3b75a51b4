"""HOST:PORT as text and back."""

import pytest

from mlstm_jax.config import Distributed
from mlstm_jax.config.sections import Address, parse_address
from mlstm_jax.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:8476", Address("node1", 8476)),
        ("mlstm-0.mlstm:1", Address("mlstm-0.mlstm", 1)),
        ("node_1.example.org.:65535", Address("node_1.example.org.", 65535)),
        ("10.0.0.1:8476", Address("10.0.0.1", 8476)),
        ("[::1]:8476", Address("::1", 8476)),
        ("[fe80::1%eth0]:8476", Address("fe80::1%eth0", 8476)),
    ],
)
def test_an_address_is_read_and_written(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert str(expected) == text
    assert Distributed(coordinator=text).coordinator == text


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("::1:8476", "brackets around an IPv6 address, such as [::1]:8476"),
        ("fe80::1%eth0:8476", "such as [fe80::1%eth0]:8476"),
        ("1:2:3:4:5:6:7:8:8476", "such as [1:2:3:4:5:6:7:8]:8476"),
        ("1:2:3:4:5:6:7:8", "such as [1:2:3:4:5:6:7:8]:8476"),
        ("::1", "such as [::1]:8476"),
        *(
            (text, "HOST:PORT, such as node1:8476")
            for text in (
                *("", ":", "node1", "node1:", ":8476", "[]:8476", "[::1]", "[::1:8476"),
                *("[node1]:8476", "[10.0.0.1]:8476", "[fe80::1%]:8476", "http://node1:8476"),
                *("node1:0", "node1:65536", "node1:-1", "node1:+1", "node1: 1", "node1:1e3"),
                *("node1:²", "node1:٣", "node1:000001", "node 1:8476", "a\n:8476"),
                *(
                    "::1]:8476",
                    "node1:8476:8477",
                    "a..b:8476",
                    "a" * 64 + ":8476",
                    "user@node1:8476",
                ),
            )
        ),
    ],
)
def test_what_is_no_address_is_named(text: str, rule: str) -> None:
    with pytest.raises(UserError) as error:
        Distributed(coordinator=text)
    assert f"distributed.coordinator is {text!r}, but it must be HOST:PORT" in str(error.value)
    assert rule in str(error.value)
