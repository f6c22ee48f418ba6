"""What the end of a command means: all exit codes, and which error ends with which."""

from routemaster.errors import BusAway, BusRunning, Refused, RoutemasterError, SettingError

FINE, FAILED, WRONG_USAGE, FOLDER_IN_USE, BUS_AWAY, REFUSED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
MEANINGS = {
    FINE: "fine",
    FAILED: "failed",
    WRONG_USAGE: "wrong usage or settings",
    FOLDER_IN_USE: "the folder is in use",
    BUS_AWAY: "the bus cannot be reached",
    REFUSED: "the bus refused",
    INTERRUPTED: "stopped by Ctrl-C",
}


def epilog(*codes: int) -> str:
    """The exit codes a command may end with, as its help says them."""
    return f"Exit codes: {', '.join(f'{code} {MEANINGS[code]}' for code in codes)}."


EXIT_CODES = epilog(*MEANINGS)
RUNS = epilog(FINE, FAILED, WRONG_USAGE, FOLDER_IN_USE)  # of a command that runs a bus or a part of it
ASKS = epilog(FINE, FAILED, WRONG_USAGE, BUS_AWAY, REFUSED, INTERRUPTED)  # of one that asks a bus
DIAGNOSES = "Exit codes: 0 no problem was found, 1 some were, 2 wrong usage, 130 stopped by Ctrl-C."


def code_of(error: RoutemasterError) -> int:
    match error:
        case SettingError():
            return WRONG_USAGE
        case BusRunning():
            return FOLDER_IN_USE
        case BusAway():
            return BUS_AWAY
        case Refused():
            return REFUSED
        case _:
            return FAILED
