"""All that talks to Valkey: one file per concept, its Lua beside it."""
