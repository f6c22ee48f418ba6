"""`routemaster status`: what a bus does just now, as a screen, as text or as JSON."""
