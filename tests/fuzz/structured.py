"""Structure-aware fuzzing of messages: valid uploads of random schemas, changed field by field.

    python -m tests.fuzz.structured --count 1000000 --seed 0

A valid upload is made by the encoder, for a schema of one to six tensors in all codings. It is taken apart into the
header's fields and each tensor's bytes, one to three of these are changed, and it is put together again: with lengths
that fit, so that what is inside is reached. Every tenth travels in a reply of which the version is computed anew, so
that it is the honest name of the changed content. Reading it must give what fits the schema, or a SepalError. Memory
must not grow.

Upload number i of a seed is always the same: --first i --count 1 makes a failure again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from functools import lru_cache

import numpy as np

from sepal.errors import SepalError
from sepal.protocol.messages import Content, Reply, read_reply, version, write_reply
from sepal.protocol.payloads import GREATEST_VALUE, seal, unseal
from sepal.protocol.types import ClientInfo, Kind, Payload
from sepal.wire import SparseTensor, Support, TensorSpec, inspect
from tests.fuzz.changes import CHANGES, Draft, assembled, draft
from tests.fuzz.uploads import Valid, valid
from tests.fuzz.wire import check_entries, options, peak, report

FAMILY = 8  # changes made of one valid upload
REPLIES = 10  # one in so many is read out of a whole message, which takes longer
LOOKS = 500  # uploads between two looks at the memory
GROWTH_MB = 64  # far above what any of these uploads may take
RUN, BASE = "0" * 32, f"1-{'a' * 24}"


@lru_cache(maxsize=2)
def family(seed: int, number: int) -> tuple[Valid, Content]:
    """A valid upload and its content, which was checked to decode to the very same."""
    example = valid(seed, number)
    content = seal(example.payload)
    back = unseal(content, example.schema, lambda: example.answered)
    assert list(back.tensors) == list(example.payload.tensors)
    assert back.scalars == example.payload.scalars
    for name, tensor in example.payload.tensors.items():
        _check_same(name, back.tensors[name], tensor)
    return example, content


def _check_same(name: str, first: SparseTensor, second: SparseTensor) -> None:
    assert first.shape == second.shape, name
    assert np.array_equal(first.positions(), second.positions()), name
    assert (first.values is None) is (second.values is None), name
    if first.values is not None and second.values is not None:
        assert first.values.tobytes() == second.values.tobytes(), name


def changed(seed: int, number: int) -> tuple[Valid, Content, str]:
    """Upload ``number`` of ``seed``: its family's, changed, and the name of the first change."""
    example, content = family(seed, number // FAMILY)
    rng = np.random.default_rng([seed, 1, number])
    upload = (
        draft(content.data, dict(content.scalars)) if content.data else Draft([], dict(content.scalars), b"SEPAL\1")
    )
    which = [CHANGES[rng.integers(len(CHANGES))] for _ in range(rng.integers(1, 4))]
    for change in which:
        change(upload, rng)
    return example, Content(assembled(upload), upload.scalars), which[0].__name__  # type: ignore[arg-type]


def travelled(content: Content) -> Content:
    """What is read out of a reply with ``content``, whose version is the honest name of it.

    Raises:
        SepalError: The reply is refused.
        AssertionError: Something else was read than was written.
    """
    download = Content(b"download").digest()
    reached = version(2, BASE, download, content.digest())
    reply = Reply(RUN, 2, Kind.TRAIN, ClientInfo("client-1", 5), BASE, download, reached)
    head, got = read_reply(write_reply(reply, content))
    assert head.version == version(2, BASE, download, got.digest()), "the content is not what was sent"
    return got


def verdict(example: Valid, content: Content, in_reply: bool = False) -> str:
    """``accepted``, or the refusal's class and the last word of its key; anything else is raised.

    Raises:
        AssertionError: Something came back that the schema does not admit.
    """
    try:
        payload = unseal(travelled(content) if in_reply else content, example.schema, lambda: example.answered)
    except SepalError as error:
        return f"refused: {type(error).__name__} {error.key.split()[-1].partition('-')[0]}"
    _check(payload, example)
    again = unseal(seal(payload), example.schema, lambda: example.answered)
    for name, tensor in payload.tensors.items():
        _check_same(name, again.tensors[name], tensor)
    return "accepted"


def _check(payload: Payload, example: Valid) -> None:
    """Raise AssertionError where the schema does not admit what was decoded."""
    specs, order = example.schema.tensors, list(example.schema.tensors)
    assert list(payload.tensors) == [name for name in order if name in payload.tensors]
    for name, spec in specs.items():
        bounds = spec if isinstance(spec, TensorSpec) else spec(payload.tensors)
        if name not in payload.tensors:
            assert bounds.optional, name
            continue
        tensor = payload.tensors[name]
        expected_index = example.answered[name].index if bounds.support is Support.SAME else bounds.index
        assert tensor.shape == bounds.shape, name
        if tensor.support is Support.EXPLICIT:
            assert bounds.support is Support.EXPLICIT, name
            most = bounds.size if bounds.max_count is None else bounds.max_count
            assert bounds.min_count <= tensor.nnz <= most, name
        else:
            assert tensor.support is bounds.support or expected_index is not None, name
            expected = np.arange(bounds.size) if expected_index is None else expected_index
            assert np.array_equal(tensor.positions(), expected), name
        check_entries(name, tensor, bounds.values)
        if tensor.values is not None:
            assert np.abs(tensor.values).max(initial=0) <= GREATEST_VALUE, name
    assert payload.scalars.keys() == example.schema.scalars.keys()
    for name, (kind, least, greatest) in example.schema.scalars.items():
        value = payload.scalars[name]
        assert type(value) is kind, name
        assert least is None or value >= least, name  # type: ignore[operator]
        assert greatest is None or value <= greatest, name  # type: ignore[operator]


def run(seed: int, first: int, count: int) -> tuple[Counter[str], Counter[str]]:
    """How often each verdict was given, and how often the uploads of each first change were accepted."""
    verdicts: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    begun = 0
    for number in range(first, first + count):
        example, content, change = changed(seed, number)
        try:
            outcome = verdict(example, content, number % REPLIES == 0)
            if (number - first) % LOOKS == LOOKS - 1:
                begun = begun or peak()
                assert peak() <= begun + GROWTH_MB, f"memory grew from {begun} to {peak()} MB"
        except Exception:
            print(f"seed {seed} number {number} ({change}): {content.data.hex()} {content.scalars}", file=sys.stderr)
            raise
        verdicts[outcome] += 1
        accepted[change] += outcome == "accepted"
    return verdicts, accepted


def codings(seed: int, families: int) -> set[str]:
    """Every coding of positions and values that the valid uploads have."""
    names: set[str] = set()
    for number in range(families):
        content = family(seed, number)[1]
        if content.data:
            for entry in inspect(content.data).tensors:
                names |= {f"index {entry.index.value}", f"values {entry.values.value}"}
    return names


def main() -> None:
    chosen, start = options(__doc__), time.perf_counter()
    verdicts, accepted = run(chosen.seed, chosen.first, chosen.count)
    print("accepted, by first change: " + ", ".join(f"{name} {times:,}" for name, times in accepted.most_common()))
    report("structured fuzz, uploads", verdicts, chosen.seed, time.perf_counter() - start)


if __name__ == "__main__":
    main()
