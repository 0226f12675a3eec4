"""The Cap'n Proto RPC door (SPEC 8.5)."""
