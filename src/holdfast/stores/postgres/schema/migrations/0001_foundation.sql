-- Tables of one database of a Holdfast store. Times are milliseconds since 1970.

-- This database's place in the cluster: its shard number. `epoch` rises with every change of the slot table.
CREATE TABLE cluster (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id   uuid NOT NULL,
    shard        integer NOT NULL,
    epoch        bigint NOT NULL
);

-- The owner of each slot of names. The table is the same in every database.
CREATE TABLE slots (
    slot   smallint PRIMARY KEY,
    shard  integer NOT NULL
);

-- Node numbers for message ids, leased to servers. Used on shard 0 only.
CREATE TABLE nodes (
    node        smallint PRIMARY KEY,
    holder      uuid,
    ends_at     timestamptz NOT NULL,
    highest_id  bigint NOT NULL DEFAULT 0
);

CREATE TABLE tenants (
    tenant         text COLLATE "C" PRIMARY KEY,
    tenant_id      bigint NOT NULL,
    config         bytea NOT NULL,
    revision       bigint NOT NULL DEFAULT 1,
    next_queue_id  bigint NOT NULL DEFAULT 1,
    -- This database's part of the tenant's quotas, and the version of the grant.
    granted_messages  bigint NOT NULL DEFAULT 0,
    granted_bytes     bigint NOT NULL DEFAULT 0,
    grant_version     bigint NOT NULL DEFAULT 0
);

CREATE SEQUENCE tenant_numbers AS bigint;

-- On the tenant's home database: its queues, wherever they are.
CREATE TABLE directory (
    tenant    text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    queue_id  bigint NOT NULL,
    PRIMARY KEY (tenant, queue)
);

-- On the tenant's home database: each shard's part of the tenant's quotas.
CREATE TABLE grants (
    tenant    text COLLATE "C" NOT NULL,
    shard     integer NOT NULL,
    messages  bigint NOT NULL DEFAULT 0,
    bytes     bigint NOT NULL DEFAULT 0,
    version   bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant, shard)
);

-- A deleted queue keeps its row while the journal refers to it. Its key is never used again.
CREATE TABLE queues (
    key            bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant         text COLLATE "C" NOT NULL,
    queue          text COLLATE "C" NOT NULL,
    tenant_id      bigint NOT NULL,
    queue_id       bigint NOT NULL,
    policy         bytea NOT NULL,
    revision       bigint NOT NULL DEFAULT 1,
    -- Copied from the policy, for statements that need nothing else of it.
    lease_ms       bigint NOT NULL,
    max_lease_ms   bigint NOT NULL,
    keeps          boolean NOT NULL DEFAULT false,
    is_paused      boolean NOT NULL DEFAULT false,
    drain_until    bigint,
    -- Set with the first message in a group, and never cleared. From then on, transactions that touch groups lock this
    -- row.
    has_groups     boolean NOT NULL DEFAULT false,
    highest_grouped  bigint NOT NULL DEFAULT 0,
    gone_at        bigint
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX queues_by_name ON queues (tenant, queue) WHERE gone_at IS NULL;
CREATE INDEX queues_gone ON queues (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX queues_draining ON queues (key) WHERE drain_until IS NOT NULL AND gone_at IS NULL;

-- status: 0 ready and due; 1 in flight; 2 succeeded and kept; 3 failed; 4 ready, behind the head of its group; 5 ready,
-- but not due when it was written. A claim reads only status 0, in the order of one index.
CREATE TABLE items (
    queue_key         bigint NOT NULL,
    id                bigint NOT NULL,
    status            smallint NOT NULL,
    priority          smallint NOT NULL,
    deliver_after     bigint NOT NULL,
    created_at        bigint NOT NULL,
    bytes             bigint NOT NULL,
    attempt           integer NOT NULL DEFAULT 0,
    failures          integer NOT NULL DEFAULT 0,
    expiries          integer NOT NULL DEFAULT 0,
    releases          integer NOT NULL DEFAULT 0,
    version           bigint NOT NULL DEFAULT 0,
    is_json           boolean NOT NULL,
    -- The lease.
    lease_token       bytea,
    claimed_at        bigint,
    lease_expires_at  bigint,
    lease_ends_at     bigint,
    owner             text,
    consumer          text,
    ledger_number     bigint,
    -- The end of the TTL.
    expires_at        bigint,
    settled_at        bigint,
    keep_until        bigint,
    -- Any text, including NUL, hence bytes.
    error             bytea,
    reason            text,
    content_type      text,
    headers           bytea,
    ttl_ms            bigint,
    group_name        text COLLATE "C",
    correlation_id    text,
    max_retries       integer,
    -- A large payload is in the table `pieces`.
    piece_place       bigint,
    piece_size        bigint,
    piece_checksum    bigint,
    state             bytea,
    payload           bytea NOT NULL,
    PRIMARY KEY (queue_key, id)
) WITH (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 50000
);
-- Most payloads are compressed already or short, so compressing them costs more than it saves.
ALTER TABLE items ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX items_ready ON items (queue_key, priority, deliver_after, id) WHERE status = 0;
CREATE INDEX items_leased ON items (queue_key, lease_expires_at) WHERE status = 1;
CREATE INDEX items_failed ON items (queue_key, id) WHERE status = 3;
CREATE INDEX items_kept ON items (queue_key, keep_until) WHERE status = 2;
CREATE INDEX items_delayed ON items (queue_key, deliver_after) WHERE status = 5;
CREATE INDEX items_behind ON items (queue_key, deliver_after) WHERE status = 4;
CREATE INDEX items_mortal ON items (queue_key, expires_at) WHERE expires_at IS NOT NULL AND status IN (0, 4, 5);
CREATE INDEX items_grouped ON items (queue_key, group_name, id) WHERE group_name IS NOT NULL AND status IN (0, 4, 5);
CREATE INDEX items_heads ON items (queue_key, group_name) WHERE group_name IS NOT NULL AND status IN (0, 5);
CREATE INDEX items_grouped_leased ON items (queue_key, group_name) WHERE group_name IS NOT NULL AND status = 1;

-- With the names that the compatible door uses.
CREATE VIEW items_by_name AS
    SELECT queues.tenant AS namespace, queues.queue AS topic, items.*
    FROM items JOIN queues ON queues.key = items.queue_key;

-- Idempotency keys outlive their messages.
CREATE TABLE seen_keys (
    queue_key       bigint NOT NULL,
    key             text COLLATE "C" NOT NULL,
    id              bigint NOT NULL,
    correlation_id  text,
    ends_at         bigint NOT NULL,
    PRIMARY KEY (queue_key, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX seen_keys_ends ON seen_keys (ends_at);

-- seq: the transaction's number << 20 | the event's index in the transaction. So no event can appear behind a reader
-- that stops below the oldest open transaction, and numbers rise in reading order.
CREATE TABLE journal (
    seq             bigint PRIMARY KEY,
    at              bigint NOT NULL,
    queue_key       bigint NOT NULL,
    id              bigint NOT NULL,
    event           smallint NOT NULL,
    priority        smallint NOT NULL,
    attempt         integer NOT NULL,
    version         bigint NOT NULL,
    created_at      bigint NOT NULL,
    claimed_at      bigint,
    bytes           bigint NOT NULL,
    error           bytea,
    reason          text,
    correlation_id  text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05);

-- Exact counts without a row that every transaction writes: each adds a line, and sweeps add lines up.
CREATE TABLE counts (
    queue_key  bigint PRIMARY KEY,
    waiting    bigint NOT NULL,
    delayed    bigint NOT NULL,
    in_flight  bigint NOT NULL,
    failed     bigint NOT NULL,
    kept       bigint NOT NULL,
    bytes      bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE count_lines (
    queue_key  bigint NOT NULL,
    waiting    bigint NOT NULL,
    delayed    bigint NOT NULL,
    in_flight  bigint NOT NULL,
    failed     bigint NOT NULL,
    kept       bigint NOT NULL,
    bytes      bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

CREATE VIEW all_counts AS
    SELECT * FROM counts UNION ALL SELECT * FROM count_lines;

CREATE TABLE ledgers (
    queue_key   bigint NOT NULL,
    consumer    text COLLATE "C" NOT NULL,
    number      bigint NOT NULL,
    claimed_at  bigint NOT NULL,
    receipts    bytea NOT NULL,
    PRIMARY KEY (queue_key, consumer, number)
);
CREATE TABLE ledger_ends (
    queue_key    bigint NOT NULL,
    consumer     text COLLATE "C" NOT NULL,
    closed_upto  bigint NOT NULL,
    PRIMARY KEY (queue_key, consumer)
);

CREATE TABLE schedules (
    queue_key  bigint NOT NULL,
    name       text COLLATE "C" NOT NULL,
    body       bytea NOT NULL,
    next_at    bigint,
    PRIMARY KEY (queue_key, name)
);
CREATE INDEX schedules_due ON schedules (next_at, queue_key, name) WHERE next_at IS NOT NULL;

-- Moves from this database to another. A row here is the decision (stores/postgres/operations/message_moves.py).
CREATE TABLE moves (
    move  uuid PRIMARY KEY,
    -- The ids of the moved messages; empty if the move was cancelled.
    ids   bigint[] NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- On the target database: arriving messages, until their move is decided.
CREATE TABLE arrivals (
    move        uuid PRIMARY KEY,
    from_shard  integer NOT NULL,
    from_queue  text NOT NULL,
    queue_key   bigint NOT NULL,
    messages    bigint NOT NULL,
    bytes       bigint NOT NULL,
    body        bytea NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The database's clock, or the fixed time `given` in tests.
CREATE FUNCTION now_ms(given bigint) RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
    'SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)';
