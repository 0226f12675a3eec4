"""Ways in: each speaks one protocol and decides nothing."""
