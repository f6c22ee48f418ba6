"""`routemaster import`: taking over a store of the original Routemaster."""
