"""UIDs: 20 characters, 120 bits, that sort by the time they were made.

48 bits of milliseconds, then 72 bits that are unique: 42 random ones that a process draws once and
30 that it counts. Six bits a character, in the URL-safe alphabet *in ASCII order*, so that the
order of the text is the order of the number (the order of standard Base64 is not).
Within one process UIDs only ever rise, also when the clock steps back.
"""

import secrets
import time
from collections.abc import Callable

ALPHABET = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
LENGTH = 20
COUNTER_BITS = 30

_PAIRS = [high + low for high in ALPHABET for low in ALPHABET]
_DIGITS = {character: value for value, character in enumerate(ALPHABET)}


def encode(number: int, length: int) -> str:
    """`number` in `length` characters, six bits each, most significant first."""
    return "".join(ALPHABET[number >> shift & 63] for shift in range(6 * (length - 1), -1, -6))


def decode(text: str) -> int:
    number = 0
    for character in text:
        number = number << 6 | _DIGITS[character]
    return number


def time_ms(uid: str) -> int:
    """The time at which a UID was made."""
    return decode(uid[:8])


def is_uid(text: str) -> bool:
    return len(text) == LENGTH and all(character in _DIGITS for character in text)


class Maker:
    """Makes UIDs for one process. Not to be shared across a fork: the random part would repeat."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._at_ms = -1
        self._time = ""
        self._unique = ""
        self._prefix = ""
        self._count = 0
        self._renew()

    def __call__(self) -> str:
        prefix, number = self.range(1)
        return prefix + _PAIRS[number >> 18] + _PAIRS[number >> 6 & 4095] + ALPHABET[number & 63]

    def many(self, size: int) -> list[str]:
        """`size` UIDs that rise."""
        prefix, first = self.range(size)
        return [
            prefix + _PAIRS[n >> 18] + _PAIRS[n >> 6 & 4095] + ALPHABET[n & 63]
            for n in range(first, first + size)
        ]

    def range(self, size: int) -> tuple[str, int]:
        """Reserve `size` UIDs at once: their first 15 characters, and the number of the first.

        The UID of number n is the 15 characters and then `encode(n, 5)`: what a script does for
        batches, because only the script knows how many it will need.
        """
        now_ms = self._now_ms()
        if now_ms > self._at_ms:
            self._at_ms = now_ms
            self._time = encode(now_ms, 8)
            self._prefix = self._time + self._unique
        first = self._count
        if first + size > 1 << COUNTER_BITS:
            # A new random part may sort before the old one: step the time so that UIDs still rise.
            self._at_ms += 1
            self._time = encode(self._at_ms, 8)
            self._renew()
            first = 0
            self._prefix = self._time + self._unique
        self._count = first + size
        return self._prefix, first

    def _renew(self) -> None:
        self._unique = encode(secrets.randbits(42), 7)
        self._count = 0
