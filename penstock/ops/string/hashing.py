"""The hashes that turn strings into buckets: FarmHash's Fingerprint64, SipHash-2-4, and a 64-bit Murmur hash.

All strings of one length are hashed at once: NumPy's uint64 arithmetic wraps around as the algorithms need.

>>> fingerprint64([b"hello", b"world"])
array([13009744463427800296, 16436542438370751598], dtype=uint64)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

U64 = Any  # an array of uint64
_u = np.uint64
_K0, _K1, _K2 = _u(0xC3A5C85C97CB3127), _u(0xB492B66FBE98F273), _u(0x9AE16A3B2F90404F)
_MURMUR, _MURMUR_SEED = _u(0xC6A4A7935BD1E995), _u(0xDECAFCAFFE)
_SIP = tuple(_u(c) for c in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573))


class _Texts:
    """Strings of one length, as columns of little-endian numbers."""

    def __init__(self, texts: Sequence[bytes], size: int) -> None:
        self.size = size
        self._bytes = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), size)

    def number(self, start: int, width: int = 8) -> U64:
        """The `width` bytes from `start` on, one number per string."""
        wide = np.zeros((len(self._bytes), 8), np.uint8)
        wide[:, :width] = self._bytes[:, start : start + width]
        return wide.view("<u8")[:, 0].astype(np.uint64, copy=False)


def _by_length(texts: Sequence[bytes], hashed: Callable[[_Texts], U64]) -> U64:
    groups: dict[int, list[int]] = {}
    for i, text in enumerate(texts):
        groups.setdefault(len(text), []).append(i)
    result = np.empty(len(texts), np.uint64)
    with np.errstate(over="ignore"):
        for size, members in groups.items():
            result[members] = hashed(_Texts([texts[i] for i in members], size))
    return result


def fingerprint64(texts: Sequence[bytes]) -> U64:
    """FarmHash's Fingerprint64 of each string, the hash of `string_to_hash_bucket_fast`."""
    return _by_length(texts, _farm)


def siphash(texts: Sequence[bytes], key: Sequence[int]) -> U64:
    """SipHash-2-4 of each string under a key of two numbers, the hash of `string_to_hash_bucket_strong`."""
    return _by_length(texts, lambda t: _siphash(t, _u(key[0] % 2**64), _u(key[1] % 2**64)))


def murmur64(texts: Sequence[bytes]) -> U64:
    """The Murmur hash of each string that `string_to_hash_bucket` uses."""
    return _by_length(texts, _murmur)


def _rotate(x: U64, right: int) -> U64:
    return (x >> _u(right)) | (x << _u(64 - right))


def _mix(x: U64) -> U64:
    return x ^ (x >> _u(47))


def _join(u: U64, v: U64, mul: U64) -> U64:
    a = _mix((u ^ v) * mul)
    return _mix((v ^ a) * mul) * mul


def _farm(t: _Texts) -> U64:
    n, at = t.size, t.number
    mul = np.array([_K2 + _u(2 * n)])
    if n > 64:
        return _farm_long(t)
    if n == 0:
        return np.broadcast_to(_K2, len(t._bytes))
    if n <= 3:
        y = at(0, 1) + (at(n >> 1, 1) << _u(8))
        z = _u(n) + (at(n - 1, 1) << _u(2))
        return _mix(y * _K2 ^ z * _K0) * _K2
    if n < 8:
        return _join(_u(n) + (at(0, 4) << _u(3)), at(n - 4, 4), mul)
    if n <= 16:
        a, b = at(0) + _K2, at(n - 8)
        return _join(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
    if n <= 32:
        a, b, c, d = at(0) * _K1, at(8), at(n - 8) * mul, at(n - 16) * _K2
        return _join(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, mul)
    a, b, c, d = at(0) * _K2, at(8), at(n - 8) * mul, at(n - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _join(y, a + _rotate(b + _K2, 18) + c, mul)
    e, f, g, h = at(16) * mul, at(24), (y + at(n - 32)) * mul, (z + at(n - 24)) * mul
    return _join(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul)


def _weak(t: _Texts, s: int, a: U64, b: U64) -> tuple[U64, U64]:
    w, x, y, z = (t.number(s + i) for i in (0, 8, 16, 24))
    a = a + w
    b = _rotate(b + a + z, 21)
    c = a
    a = a + x + y
    return a + z, b + _rotate(a, 44) + c


def _farm_long(t: _Texts) -> U64:
    n, at = t.size, t.number
    zero = np.zeros(len(t._bytes), np.uint64)
    y = zero + _u(81) * _K1 + _u(113)
    z = _mix(y * _K2 + _u(113)) * _K2
    v, w = (zero, zero), (zero, zero)
    x = _u(81) * _K2 + at(0)
    end = (n - 1) // 64 * 64
    for s in range(0, end, 64):
        x = _rotate(x + y + v[0] + at(s + 8), 37) * _K1 ^ w[1]
        y = _rotate(y + v[1] + at(s + 48), 42) * _K1 + v[0] + at(s + 40)
        z = _rotate(z + w[0], 33) * _K1
        v = _weak(t, s, v[1] * _K1, x + w[0])
        w = _weak(t, s + 32, z + w[1], y + at(s + 16))
        z, x = x, z
    s = n - 64
    mul = _K1 + ((z & _u(0xFF)) << _u(1))
    first = w[0] + _u((n - 1) & 63)
    v = (v[0] + first, v[1])
    w = (first + v[0], w[1])
    x = _rotate(x + y + v[0] + at(s + 8), 37) * mul ^ w[1] * _u(9)
    y = _rotate(y + v[1] + at(s + 48), 42) * mul + v[0] * _u(9) + at(s + 40)
    z = _rotate(z + w[0], 33) * mul
    v = _weak(t, s, v[1] * mul, x + w[0])
    w = _weak(t, s + 32, z + w[1], y + at(s + 16))
    z, x = x, z
    return _join(_join(v[0], w[0], mul) + _mix(y) * _K0 + z, _join(v[1], w[1], mul) + x, mul)


def _siphash(t: _Texts, key0: np.uint64, key1: np.uint64) -> U64:
    zero = np.zeros(len(t._bytes), np.uint64)
    state = [zero + (c ^ k) for c, k in zip(_SIP, (key0, key1, key0, key1), strict=True)]
    whole = t.size // 8 * 8
    blocks = [t.number(s) for s in range(0, whole, 8)]
    blocks.append(t.number(whole, t.size - whole) | _u((t.size & 0xFF) << 56))
    for block in blocks:
        state[3] = state[3] ^ block
        _sip_rounds(state, 2)
        state[0] = state[0] ^ block
    state[2] = state[2] ^ _u(0xFF)
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_rounds(state: list[U64], count: int) -> None:
    a, b, c, d = state
    for _ in range(count):
        a = a + b
        b = _rotate(b, 64 - 13) ^ a
        a = _rotate(a, 32)
        c = c + d
        d = _rotate(d, 64 - 16) ^ c
        a = a + d
        d = _rotate(d, 64 - 21) ^ a
        c = c + b
        b = _rotate(b, 64 - 17) ^ c
        c = _rotate(c, 32)
    state[:] = a, b, c, d


def _murmur(t: _Texts) -> U64:
    h = np.full(len(t._bytes), _MURMUR_SEED) ^ (np.array([t.size], np.uint64) * _MURMUR)
    whole = t.size // 8 * 8
    for s in range(0, whole, 8):
        k = _mix(t.number(s) * _MURMUR) * _MURMUR
        h = (h ^ k) * _MURMUR
    if t.size > whole:
        h = (h ^ t.number(whole, t.size - whole)) * _MURMUR
    h = _mix(h) * _MURMUR
    return _mix(h)
