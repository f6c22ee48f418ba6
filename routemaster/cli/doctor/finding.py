"""What a check found: a verdict, what was seen, and what to do about it."""

from typing import Literal

import msgspec

Verdict = Literal["ok", "info", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    check: str
    verdict: Verdict
    seen: str
    advice: str = ""
