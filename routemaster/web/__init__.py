"""HTTP: the publish path as raw ASGI, the rest as a small table of calls."""
