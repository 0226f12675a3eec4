"""The client over HTTP: the same calls as embedded, carried to a server."""
