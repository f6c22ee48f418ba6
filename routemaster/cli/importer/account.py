"""The account of an import: what was taken over, what was there already, what was left, and why."""

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

MOST_LEFT = 1000  # that are called by name
MOST_SHOWN = 20


class Tally(msgspec.Struct):
    taken: int = 0  # by this run
    known: int = 0  # by an earlier one, or of itself
    left: int = 0


class Left(msgspec.Struct, frozen=True):
    """Something that stays where it was. No name is a token."""

    what: str
    name: str
    why: str


class Count(msgspec.Struct, frozen=True):
    """A counter that has no place here."""

    name: str
    tags: dict[str, str]
    value: int


class Account(msgspec.Struct):
    source: str
    target: str
    dry_run: bool
    tokens: Tally = msgspec.field(default_factory=Tally)
    topics: Tally = msgspec.field(default_factory=Tally)
    subscriptions: Tally = msgspec.field(default_factory=Tally)
    batches: Tally = msgspec.field(default_factory=Tally)
    events: Tally = msgspec.field(default_factory=Tally)
    orphaned_batches: int = 0  # of nobody who is subscribed: they were never going to be delivered
    without_token: list[str] = msgspec.field(default_factory=list[str])  # clients that cannot call
    left: list[Left] = msgspec.field(default_factory=list[Left])
    left_unnamed: int = 0  # more of them
    counters: list[Count] = msgspec.field(default_factory=list[Count])
    notes: list[str] = msgspec.field(default_factory=list[str])
    changed_meanwhile: bool = False  # the source
    failed: str = ""  # why it ended early
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left."""
        return not self.left and not self.changed_meanwhile and not self.failed

    def leave(self, what: str, name: str, why: str) -> None:
        tally: Tally = getattr(self, {"batch": "batches"}.get(what, what + "s"))
        tally.left += 1
        if len(self.left) < MOST_LEFT:
            self.left.append(Left(what, name, why))
        else:
            self.left_unnamed += 1


def show(account: Account) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("would be taken" if account.dry_run else "taken", "known already", "left"):
        table.add_column(name, justify="right")
    for name in ("tokens", "topics", "subscriptions", "batches", "events"):
        tally: Tally = getattr(account, name)
        table.add_row(name, f"{tally.taken:,}", f"{tally.known:,}", f"{tally.left:,}")
    title = f"{account.source} → {account.target}, {account.seconds:.1f} s"
    parts: list[RenderableType] = [Text(title, style="bold"), Padding(table, (1, 0))]
    parts += [Text(line) for line in _remarks(account)]
    return Group(*parts)


def _remarks(account: Account) -> list[str]:
    lines = list(account.notes)
    if account.orphaned_batches:
        lines.append(f"Batches of nobody who is subscribed, passed over: {account.orphaned_batches:,}.")
    if account.without_token:
        lines.append("No token there, and none here until root rotates: " + ", ".join(account.without_token))
    if account.counters:
        lines.append(f"Counters that have no place here: {len(account.counters)}; --json lists them.")
    if account.left:
        lines.append("Left where they are:")
        lines += [f"  {left.what} {left.name}: {left.why}" for left in account.left[:MOST_SHOWN]]
        more = len(account.left) + account.left_unnamed - MOST_SHOWN
        if more > 0:
            lines.append(f"  and {more:,} more" + ("; --json lists them" if not account.left_unnamed else ""))
    if account.changed_meanwhile:
        lines.append(
            "The old store changed while it was read: stop the old bus, and run this again for the rest."
        )
    if account.failed:
        lines.append(f"It ended early, and goes on from here when it is run again: {account.failed}")
    if account.dry_run:
        lines.append("Nothing was changed: this was a dry run.")
    return lines
