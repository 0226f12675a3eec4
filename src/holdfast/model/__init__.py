"""The words and rules every other part shares: pure, with no I/O, no clock, no dice and no asyncio."""
