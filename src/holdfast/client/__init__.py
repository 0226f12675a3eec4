"""What programs hold in their hands: queues and messages, the same over every transport."""
