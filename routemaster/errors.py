"""The one error tree. Everything that Routemaster raises on purpose is in it.

RoutemasterError
├── SettingError        a setting that cannot be used; names the variable, the value, what was expected
├── InvalidInput        a request that cannot be accepted; names the field and what was expected
├── StoreError          the store did not do what was asked
│   ├── StoreAway       it cannot be reached, or it is not able to answer yet: try again
│   ├── StoreFull       it refuses writes for want of memory or disk: try again later
│   └── StoreUnfit      it is reachable but not one we can run on (version, layout, policy)
├── BusRunning          another supervisor holds the folder
├── BusAway             a bus cannot be reached, or cannot take anything just now: try again later
├── Refused             a bus does not do what was asked; says why, in its own words
└── StartFailed         a bus could not be brought up: a port that is taken, a child that keeps dying

The store's own errors are translated at its edge (store/connection.py); the mapping of these to
HTTP is one table (web/problem.py).
"""


class RoutemasterError(Exception):
    """Base of all of them; its text is fit to show to a person."""


class SettingError(RoutemasterError):
    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(
            f"{name}={value!r}: expected {expected}" if value else f"{name}: expected {expected}"
        )
        self.name = name
        self.value = value
        self.expected = expected


class InvalidInput(RoutemasterError):
    def __init__(self, field: str, expected: str, *, index: int | None = None) -> None:
        where = f"{field} of event {index}" if index is not None else field
        super().__init__(f"{where}: expected {expected}")
        self.field = field
        self.expected = expected
        self.index = index


class StoreError(RoutemasterError):
    pass


class StoreAway(StoreError):
    pass


class StoreFull(StoreError):
    pass


class StoreUnfit(StoreError):
    pass


class BusRunning(RoutemasterError):
    pass


class BusAway(RoutemasterError):
    def __init__(self, text: str, *, was_sent: bool = False) -> None:
        super().__init__(text)
        self.was_sent = was_sent  # the request may have arrived, and may have been acted on


class Refused(RoutemasterError):
    pass


class StartFailed(RoutemasterError):
    pass
