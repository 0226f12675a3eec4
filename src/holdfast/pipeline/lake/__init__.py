"""The lake: tables of Parquet files whose every change is one commit, with the writer's position in it."""
