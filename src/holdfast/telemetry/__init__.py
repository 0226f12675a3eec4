"""What is measured and said: metrics, logs, traces."""
