"""`routemaster doctor`: whether a bus can run here, and whether the one that is meant does well."""
