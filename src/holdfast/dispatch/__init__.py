"""Who is waiting, who is woken, whose lease ran out."""
