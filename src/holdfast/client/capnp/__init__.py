"""The client over Cap'n Proto RPC."""
