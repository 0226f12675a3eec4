"""Errors made alike: what differs from one message to the next is cut out, so that one fault is one cluster."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_LONGEST = 200

# In this order: the longer forms before what they are made of.
NORMALISED: tuple[tuple[str, str], ...] = (
    (r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "<id>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+", "<url>"),
    (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", "<address>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<host>"),
    (r"(?:/[A-Za-z0-9._-]+){2,}/?", "<path>"),
    (r"0x[0-9a-fA-F]+", "<hex>"),
    (r"\b[0-9a-fA-F]{16,}\b", "<hex>"),
    (r"'[^']*'", "'…'"),
    (r"\"[^\"]*\"", '"…"'),
    (r"\d+(?:\.\d+)?", "<n>"),
    (r"\s+", " "),
)


def normalised(error: Column) -> Column:
    """The error's first line without what is its message's own."""
    # Only so much is looked at: an error may be a whole traceback.
    text = F.substring_index(F.trim(F.substring(error, 1, 4 * _LONGEST)), "\n", 1)
    for pattern, instead in NORMALISED:
        text = F.regexp_replace(text, pattern, instead)
    return F.substring(text, 1, _LONGEST)


def clusters(failures: DataFrame, *, by: tuple[str, ...] = ("tenant", "queue")) -> DataFrame:
    """Events `failed` and `retried`, or failed messages, by what went wrong; the most frequent first."""
    said = F.coalesce(
        normalised(F.col("error")), F.concat(F.lit("("), F.col("reason"), F.lit(")")), F.lit("(no error)")
    )
    return (
        failures.withColumn("cluster", said)
        .groupBy(*by, "cluster")
        .agg(
            F.count(F.lit(1)).alias("failures"),
            F.count_distinct("id").alias("messages"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.max_by("error", "at").alias("sample"),
            F.max_by("id", "at").alias("sample_id"),
        )
        .orderBy(F.desc("failures"), "cluster")
    )
