"""Ten thousand mutated payloads, always the same ones; ``python -m tests.fuzz.wire`` makes more."""

from tests.fuzz import wire


def test_every_mutated_payload_is_refused_or_valid():
    verdicts = wire.run(seed=0, first=0, count=10_000)
    assert verdicts.total() == 10_000
    assert 0 < verdicts["accepted"] < 5_000
    assert len(verdicts) > 15  # the mutations reach far behind the envelope
