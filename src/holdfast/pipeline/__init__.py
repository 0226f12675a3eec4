"""What moves or examines messages in bulk, on Spark. Nothing outside this folder imports it but `server` and `cli`."""
