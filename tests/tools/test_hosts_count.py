"""Which bytes of a ledger are known to have crossed the wire."""

from __future__ import annotations

from tools.hosts.federation import payload_sums


def entry(direction: str, payload: int, status: str = "accepted", client: str = "0") -> dict[str, object]:
    return {
        "round": 1,
        "client": client,
        "purpose": "training",
        "direction": direction,
        "payload": payload,
        "status": status,
    }


def test_an_order_that_was_sent_again_is_known_to_have_crossed_the_wire_once():
    """Client 0 was away: its first order of 10 bytes has no reply, the second has one of 7. Client 1 answers with 6."""
    again = [entry("down", 10), entry("up", 0, "missing"), entry("down", 10), entry("up", 7)]
    once = [entry("down", 10, client="1"), entry("up", 6, client="1")]
    assert payload_sums([*again, *once]) == ((13, 30), (13, 20))


def test_an_order_that_nobody_answered_need_not_have_crossed_the_wire():
    assert payload_sums([entry("down", 10), entry("up", 0, "missing")]) == ((0, 10), (0, 0))
