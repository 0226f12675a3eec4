"""The SQL statements by name, read from the .sql files beside this one."""

import re
from importlib import resources

# The columns of `items` that a decision needs, and the same with the columns that a delivery needs.
LIFE = (
    *(
        "id",
        "status",
        "priority",
        "deliver_after",
        "created_at",
        "bytes",
        "attempt",
        "failures",
        "expiries",
        "releases",
    ),
    *("version", "is_json", "lease_token", "claimed_at", "lease_expires_at", "lease_ends_at", "owner", "consumer"),
    *(
        "ledger_number",
        "expires_at",
        "settled_at",
        "keep_until",
        "error",
        "reason",
        "content_type",
        "headers",
        "ttl_ms",
    ),
    *("group_name", "correlation_id", "max_retries", "piece_place", "piece_size", "piece_checksum"),
)
WHOLE = (*LIFE, "state", "payload")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in resources.files(__package__).joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
            for name, body in zip(parts[::2], parts[1::2], strict=True):
                if name in statements:
                    raise RuntimeError(f"two statements are named {name}")
                sql = body.strip().removesuffix(";")
                statements[name] = sql.replace("{life}", ", ".join(f"items.{each}" for each in LIFE)).replace(
                    "{whole}", ", ".join(f"items.{each}" for each in WHOLE)
                )
    return _with_picks(statements)


def _with_picks(statements: dict[str, str]) -> dict[str, str]:
    """Insert into the statement `claim` one of two ways to pick messages, and return both variants."""
    claim, first, reserved = (statements.pop(name) for name in ("claim", "pick_first", "pick_reserved"))
    statements["claim"] = claim.replace("{picked}", _without_comments(first))
    statements["claim_reserved"] = claim.replace("{picked}", _without_comments(reserved))
    return statements


def _without_comments(sql: str) -> str:
    return "\n".join(line for line in sql.split("\n") if not line.startswith("--"))


SQL: dict[str, str] = _load()
