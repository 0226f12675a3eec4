"""Who may ask, how much, for which queue: the one service that every door calls."""
