"""Normalisation of error texts: parts that differ between messages are replaced, so that one fault is one cluster."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_MAX_LENGTH = 200

# Applied in this order: longer forms before the forms that they contain.
NORMALISATION: tuple[tuple[str, str], ...] = (
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


def normalise(error: Column) -> Column:
    """Return the error's first line with variable parts replaced."""
    # Only the beginning is used, because an error may be a whole traceback.
    text = F.substring_index(F.trim(F.substring(error, 1, 4 * _MAX_LENGTH)), "\n", 1)
    for pattern, replacement in NORMALISATION:
        text = F.regexp_replace(text, pattern, replacement)
    return F.substring(text, 1, _MAX_LENGTH)


def clusters(failures: DataFrame, *, by: tuple[str, ...] = ("tenant", "queue")) -> DataFrame:
    """Group `failed` and `retried` events, or failed messages, by their normalised error, the most frequent first."""
    cluster = F.coalesce(
        normalise(F.col("error")), F.concat(F.lit("("), F.col("reason"), F.lit(")")), F.lit("(no error)")
    )
    return (
        failures.withColumn("cluster", cluster)
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
