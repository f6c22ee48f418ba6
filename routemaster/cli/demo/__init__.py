"""`routemaster demo`: half a minute of a real bus at work, and the account of it."""
