"""Shamir's shares, keys, masks and the ring."""

from __future__ import annotations

import ast
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import sepal.secure
from sepal.errors import ProtocolError
from sepal.secure import formats
from sepal.secure.client import _packed, _Session, _unpacked
from sepal.secure.keys import KeyPairs, agree, decrypt, encrypt, public_of
from sepal.secure.masks import own_mask, pair_mask, stream
from sepal.secure.ring import Ring, Sum, mean_change, rounded, scale, within
from sepal.secure.shamir import PRIME, combine, lagrange, shares_of, split, threshold

SECRET = bytes(range(32))


def test_any_t_shares_give_the_secret_and_fewer_do_not():
    shares = dict(zip(range(1, 6), split(SECRET, 3, range(1, 6)), strict=True))
    for places in combinations(range(1, 6), 3):
        assert combine({place: shares[place] for place in places}, lagrange(places)) == SECRET
    with suppress(ProtocolError):  # raised for a number of 257 bits, which is no secret
        assert combine({1: shares[1], 2: shares[2]}, lagrange([1, 2])) != SECRET


def test_shares_by_hand():
    # f(x) = 5 + 2x + 3x²: f(1) = 10, f(2) = 21, f(3) = 38
    assert [int.from_bytes(share, "little") for share in shares_of([5, 2, 3], [1, 2, 3])] == [10, 21, 38]
    assert lagrange([1, 2, 3]) == [3, PRIME - 3, 1]  # 2·3/(1·2), 1·3/(-1·1), 1·2/(-2·-1)


def test_equal_secrets_have_other_shares():
    assert split(SECRET, 2, [1, 2]) != split(SECRET, 2, [1, 2])


def test_the_greatest_secret_fits():
    assert combine(dict(zip([4, 9], split(b"\xff" * 32, 2, [4, 9]), strict=True)), lagrange([4, 9])) == b"\xff" * 32


def test_shares_that_are_none_are_refused():
    with pytest.raises(ProtocolError, match="share: expected a number of 33 bytes below"):
        combine({1: b"\xff" * 33}, [1])
    with pytest.raises(ValueError, match="different places"):
        split(SECRET, 2, [1, 1])


@pytest.mark.parametrize(
    ("clients", "colluders", "needed"),
    [(3, 1, 3), (4, 1, 3), (5, 1, 4), (10, 1, 7), (100, 1, 67), (10, 6, 7), (10, 7, 8), (7, 5, 6)],
)
def test_the_threshold_is_above_two_thirds_and_above_the_colluders(clients, colluders, needed):
    assert threshold(clients, colluders) == needed


def test_two_clients_agree_and_a_third_or_another_purpose_does_not():
    a, b, c = KeyPairs.new(), KeyPairs.new(), KeyPairs.new()
    key = agree(a.masking, public_of(b.masking), b"pair", b"context", b"")
    assert key == agree(b.masking, public_of(a.masking), b"pair", b"context", b"")
    others = [
        agree(a.masking, public_of(c.masking), b"pair", b"context", b""),
        agree(a.masking, public_of(b.masking), b"share", b"context", b""),
        agree(a.masking, public_of(b.masking), b"pair", b"other", b""),
    ]
    assert key not in others
    with pytest.raises(ProtocolError, match="low order"):
        agree(a.masking, bytes(32), b"pair", b"", b"")


def test_a_ciphertext_is_bound_to_its_purpose():
    text = encrypt(SECRET, b"share", b"for 1")
    assert decrypt(SECRET, text, b"for 1") == b"share"
    assert decrypt(SECRET, text, b"for 2") is None
    assert decrypt(SECRET, text[:-1] + bytes([text[-1] ^ 1]), b"for 1") is None


def test_a_mask_is_the_key_stream_of_aes_256_ctr():
    # NIST SP 800-38A has no vector from counter 0; AES-256 of a zero block under a zero key is in FIPS-197's test set.
    assert stream(bytes(32), 16).hex() == "dc95c078a2408989ad48a21492842087"


def test_masks_are_shared_by_two_and_depend_on_all_that_they_are_bound_to():
    a, b = KeyPairs.new(), KeyPairs.new()
    mask = pair_mask(a.masking, public_of(b.masking), b"c", 3, 7, 40)
    assert mask == pair_mask(b.masking, public_of(a.masking), b"c", 7, 3, 40)
    assert mask != pair_mask(a.masking, public_of(b.masking), b"d", 3, 7, 40)
    assert mask != pair_mask(a.masking, public_of(b.masking), b"c", 3, 8, 40)
    own = own_mask(SECRET, b"c", 3, b"update", 40)
    assert own not in [own_mask(SECRET, b"c", 3, b"another", 40), own_mask(SECRET, b"c", 4, b"update", 40)]


@pytest.mark.parametrize("bits", [16, 32])
def test_masks_take_all_values_equally(bits):
    # χ² of the lowest byte over 2^16 entries, 255 degrees of freedom: above 400 with a probability below 1e-8
    values = np.frombuffer(own_mask(SECRET, b"c", 0, b"", 2**16 * bits // 8), f"<u{bits // 8}") % 256
    counts = np.bincount(values.astype(int), minlength=256)
    assert counts.min() > 0
    assert ((counts - 256) ** 2 / 256).sum() < 400


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_a_vector_is_its_integers(bits):
    ring, most = Ring(4, bits, 2), 2 ** (bits - 1)
    vector = ring.vector(np.array([0, -1, most - 1, -most]), [5, -7])
    entries, figures = ring.centred(vector)
    assert (entries.tolist(), figures) == ([0, -1, most - 1, -most], [5, -7])
    assert len(vector) == ring.size == 4 * bits // 8 + 8
    total = Sum(ring, vector)
    total.add(vector)
    total.subtract(vector)
    assert total.vector() == vector
    with pytest.raises(ProtocolError, match=f"expected {ring.size} bytes"):
        total.add(vector[:-1])


def test_the_sum_of_the_greatest_changes_cannot_wrap():
    for bits, clients in ((16, 3), (16, 1000), (32, 3)):
        factor = scale(bits, clients, 2.0)
        change = np.full(5, 2.0, np.float32)
        for sign in (1, -1):
            one = rounded(sign * change, factor / clients, bytes(32))
            assert np.abs(clients * one).max() + clients <= 2 ** (bits - 1) - 1 + clients
    with pytest.raises(ProtocolError, match="secure-bits: expected more bits for 32767 clients"):
        scale(16, 32767, 1.0)


def test_rounding_is_unbiased_and_repeats():
    # the mean of 40,000 draws of ⌊.3 + u⌋ has a standard deviation of .0023
    change = np.full(40_000, 0.3, np.float32)
    values = rounded(change, 1.0, SECRET)
    assert set(values.tolist()) == {0, 1}
    assert abs(values.mean() - 0.3) < 0.015
    assert (values == rounded(change, 1.0, SECRET)).all()
    assert (rounded(np.array([-2, 0, 3], np.float32), 1.0, SECRET) == [-2, 0, 3]).all()


def test_the_mean_of_a_sum_by_hand():
    # weights 1 and 3 of W = 8 are in the sum, S = 100: x = 100·(1·2 + 3·6)/8 = 250; the mean is (2 + 18)/4 = 5
    assert mean_change(np.array([250]), 100.0, 8.0, 4.0).tolist() == [5.0]


@pytest.mark.parametrize("entry", [2.5, -2.5, float("nan"), float("inf")])
def test_a_change_beyond_the_range_is_found(entry):
    assert within(np.array([2.0, -2.0], np.float32), 2.0)
    assert within(np.empty(0, np.float32), 2.0)
    assert not within(np.array([0, entry], np.float32), 2.0)


def test_entries_are_ids_and_bytes():
    data = formats.write_entries({7: b"b" * 33, 2: b"a" * 33})
    assert data == b"\x02\0\0\0" + b"a" * 33 + b"\x07\0\0\0" + b"b" * 33
    assert formats.read_shares("x", data) == {2: b"a" * 33, 7: b"b" * 33}
    with pytest.raises(ProtocolError, match="entries of 37 bytes"):
        formats.read_shares("x", data[:-1])
    with pytest.raises(ProtocolError, match="increasing ids"):
        formats.read_shares("x", data[37:] + data[:37])
    with pytest.raises(ProtocolError, match="increasing ids"):
        formats.read_shares("x", data[:37] + data[:37])


def test_one_bit_says_who_is_present():
    asked = [0, 1, 3, 4, 5, 6, 7, 9, 11]
    data = formats.write_present(asked, {0, 3, 11})
    assert data == bytes([0b00000101, 0b1])
    assert formats.read_present("x", data, asked) == {0, 3, 11}
    for wrong in (data[:1], data + b"\0", bytes([0, 0b10])):
        with pytest.raises(ProtocolError, match="9 bits"):
            formats.read_present("x", wrong, asked)


@pytest.mark.parametrize(("weight", "total"), [(3.0, 2.0), (-1.0, 2.0), (1, 2.0), (1.0, float("inf")), (1.0, "2")])
def test_what_is_no_weight_is_refused(weight, total):
    with pytest.raises(ProtocolError, match="weight"):
        formats.check_weight(weight, total)


def test_what_a_client_stores_is_read_as_it_was():
    session = _Session(
        round=3,
        figures=(1, 0.5),
        b=b"\n\0x",
        others={2: b"k" * 64},
        shares={0: b"ab"},
        answers={"share": b"", "mask": b"\n"},
    )
    assert _unpacked(_packed(session)) == session


def test_no_generator_of_numpy_is_near_a_secret():
    for path in Path(sepal.secure.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {"random", "Generator", "default_rng"} & names, path
        assert not {"random", "numpy.random", "sepal.rng"} & (imported | modules), path
