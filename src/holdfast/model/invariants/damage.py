"""The names of the findings of `holdfast verify`, the same for every store. `docs/verify.md` has the table of them."""

from enum import StrEnum
from typing import NamedTuple


class DamageKind(StrEnum):
    """A broken invariant of a store. The value is the name that reports and the table of the docs use."""

    # --- Messages ---
    MESSAGE_UNREADABLE = "message-unreadable"
    MESSAGE_LOST = "message-lost"
    MESSAGE_TWICE = "message-twice"
    MESSAGE_MISPLACED = "message-misplaced"
    ID_INVALID = "id-invalid"
    STATE_INVALID = "state-invalid"
    LEASE_MISSING = "lease-missing"
    LEASE_UNEXPECTED = "lease-unexpected"
    LEASE_INVALID = "lease-invalid"
    ATTEMPTS_INVALID = "attempts-invalid"
    DEAD_LETTER_INVALID = "dead-letter-invalid"
    KEPT_INVALID = "kept-invalid"
    OPTION_INVALID = "option-invalid"
    # --- Payloads and state documents ---
    PAYLOAD_LOST = "payload-lost"
    PAYLOAD_SIZE = "payload-size"
    PAYLOAD_DAMAGED = "payload-damaged"
    PAYLOAD_ORPHAN = "payload-orphan"
    PAYLOAD_SHARED = "payload-shared"
    PAYLOAD_GIVEN_UP = "payload-given-up"
    STATE_DOCUMENT_UNREADABLE = "state-document-unreadable"
    STATE_DOCUMENT_LOST = "state-document-lost"
    STATE_DOCUMENT_ORPHAN = "state-document-orphan"
    STATE_DOCUMENT_VERSION = "state-document-version"
    # --- Indexes, groups and counts ---
    INDEX_MISSING = "index-missing"
    INDEX_MISMATCH = "index-mismatch"
    INDEX_ORPHAN = "index-orphan"
    GROUP_MEMBER_LOST = "group-member-lost"
    GROUP_ORDER = "group-order"
    GROUP_IN_FLIGHT = "group-in-flight"
    COUNT_MISMATCH = "count-mismatch"
    # --- Idempotency keys, ledgers and schedules ---
    KEY_UNREADABLE = "key-unreadable"
    KEY_ID_INVALID = "key-id-invalid"
    KEY_END_MISMATCH = "key-end-mismatch"
    LEDGER_UNREADABLE = "ledger-unreadable"
    LEDGER_CLOSED = "ledger-closed"
    LEDGER_LOST = "ledger-lost"
    SCHEDULE_UNREADABLE = "schedule-unreadable"
    SCHEDULE_INVALID = "schedule-invalid"
    # --- Tenants and queues ---
    TENANT_UNREADABLE = "tenant-unreadable"
    TENANT_LOST = "tenant-lost"
    QUEUE_UNREADABLE = "queue-unreadable"
    QUEUE_UNKNOWN = "queue-unknown"
    QUEUE_UNLISTED = "queue-unlisted"
    QUEUE_MISPLACED = "queue-misplaced"
    QUEUE_BLOCKED = "queue-blocked"
    POLICY_LOST = "policy-lost"
    POLICY_MISMATCH = "policy-mismatch"
    NAME_MISMATCH = "name-mismatch"
    NUMBER_SHARED = "number-shared"
    NUMBER_REUSABLE = "number-reusable"
    QUEUE_INDEX_MISMATCH = "queue-index-mismatch"
    # --- Journal ---
    JOURNAL_UNREADABLE = "journal-unreadable"
    JOURNAL_GAP = "journal-gap"
    JOURNAL_QUEUE_UNKNOWN = "journal-queue-unknown"
    JOURNAL_STATE = "journal-state"
    JOURNAL_VERSION = "journal-version"
    JOURNAL_MISSING = "journal-missing"
    JOURNAL_ORDER = "journal-order"
    # --- The store itself ---
    NODE_LOST = "node-lost"
    STORE_UNREADABLE = "store-unreadable"
    ENTRY_UNKNOWN = "entry-unknown"
    SLOTS_INVALID = "slots-invalid"
    COPY_MISMATCH = "copy-mismatch"
    GRANT_EXCEEDED = "grant-exceeded"
    LANDED_INVALID = "landed-invalid"
    LOG_DAMAGED = "log-damaged"
    ARRIVAL_INVALID = "arrival-invalid"


class Problem(NamedTuple):
    """A broken invariant of one record, in words."""

    damage: DamageKind
    what: str
