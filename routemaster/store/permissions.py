"""What the store's user must be allowed: every command that we send or that our scripts run.

The one list of it: a process asks for all of them when it starts, so that a missing one is named at once
and not found by a script that stops half-way; docs/store.md shows the same list as an ACL rule.
"""

import msgspec

from routemaster.store.link import Link
from routemaster.store.script import Script

_SCRIPT = Script("permissions")

# One use of each command: KEY is a key of ours, CHANNEL a channel. Commands with a space are subcommands.
_USES = {
    # a connection and a check
    "select": "0",
    "ping": "",
    "role": "",
    "info": "server",
    "wait": "1 1",
    "subscribe": "CHANNEL",
    # scripts
    "evalsha": "digest 1 KEY",
    "script load": "source",
    # in scripts, or alone
    "time": "",
    "publish": "CHANNEL 0",
    "del": "KEY",
    "unlink": "KEY",
    "exists": "KEY",
    "rename": "KEY KEY",
    "pexpire": "KEY 1",
    "get": "KEY",
    "set": "KEY v",
    "setnx": "KEY v",
    "setbit": "KEY 0 1",
    "bitfield": "KEY INCRBY i64 0 1",
    "incrby": "KEY 1",
    "hdel": "KEY f",
    "hexists": "KEY f",
    "hget": "KEY f",
    "hgetall": "KEY",
    "hincrby": "KEY f 1",
    "hkeys": "KEY",
    "hlen": "KEY",
    "hmget": "KEY f",
    "hset": "KEY f v",
    "hsetnx": "KEY f v",
    "hvals": "KEY",
    "lindex": "KEY 0",
    "llen": "KEY",
    "lpop": "KEY",
    "lpush": "KEY v",
    "lrange": "KEY 0 1",
    "lrem": "KEY 0 v",
    "lset": "KEY 0 v",
    "ltrim": "KEY 0 1",
    "rpush": "KEY v",
    "sadd": "KEY v",
    "scard": "KEY",
    "sismember": "KEY v",
    "smembers": "KEY",
    "spop": "KEY",
    "srandmember": "KEY",
    "srem": "KEY v",
    "xadd": "KEY * f v",
    "xrange": "KEY - +",
    "xrevrange": "KEY + -",
    "xtrim": "KEY MAXLEN 1",
    "zadd": "KEY 1 v",
    "zcard": "KEY",
    "zcount": "KEY 0 1",
    "zrange": "KEY 0 1",
    "zrangebyscore": "KEY 0 1",
    "zrem": "KEY v",
    "zscore": "KEY v",
}
COMMANDS = tuple(_USES)


def rule(namespace: str) -> str:
    """What follows `ACL SETUSER <name> on ><password>`."""
    commands = " ".join(f"+{name.replace(' ', '|')}" for name in COMMANDS)
    return f"resetkeys ~{namespace}* resetchannels &{namespace}* -@all {commands}"


async def lacking(link: Link, namespace: str) -> list[str]:
    """The commands that our user may not run on a key or channel of the namespace."""
    places = {"KEY": f"{namespace}layout", "CHANNEL": f"{namespace}wake:main"}
    calls = [
        [*name.split(), *(places.get(word, word) for word in use.split())] for name, use in _USES.items()
    ]
    found: list[int] = await link.run(_SCRIPT, namespace, msgspec.msgpack.encode(calls))
    return [COMMANDS[index] for index in found]
