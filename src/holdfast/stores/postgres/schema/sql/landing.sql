-- Store calls from servers' logs (landing/land.py).

-- name: landed
-- $1-$3 one database's part of an opening of a log. The next landing of it waits here.
SELECT places, to_regclass('pg_temp.landing') IS NOT NULL AS has_table
FROM landed WHERE node = $1 AND epoch = $2 AND lane = $3 FOR UPDATE;

-- name: landed_first
INSERT INTO landed (node, epoch, lane, places) VALUES ($1, $2, $3, '{}') ON CONFLICT DO NOTHING;

-- name: landed_of
SELECT places FROM landed WHERE node = $1 AND epoch = $2 AND lane = $3;

-- name: landing_queues
-- $1, $2 names. None of these queues can change until this transaction ends.
SELECT queues.*, tenants.revision AS tenant_revision FROM queues JOIN tenants USING (tenant)
WHERE (queues.tenant, queue) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND gone_at IS NULL AND moving_to IS NULL
ORDER BY key FOR SHARE OF queues;

-- name: slots_elsewhere
-- Returns the slots among $1 that belong to another database or are moving.
SELECT slots.slot FROM slots LEFT JOIN slot_moves USING (slot)
WHERE slots.slot = ANY($1::smallint[]) AND (slots.shard <> (SELECT shard FROM cluster) OR slot_moves.slot IS NOT NULL);

-- name: gone_queue
SELECT key FROM queues WHERE tenant = $1 AND queue = $2 AND queue_id = $3;

-- name: landing_table
CREATE TEMPORARY TABLE landing (
    queue_key bigint, id bigint, priority smallint, deliver_after bigint, created_at bigint, bytes bigint,
    is_json boolean, expires_at bigint, content_type text, headers bytea, ttl_ms bigint, correlation_id text,
    max_retries integer, payload bytea
) ON COMMIT DELETE ROWS;

-- name: land
-- $1 a fixed time for tests, or NULL for the database's time.
WITH t AS MATERIALIZED (SELECT now_ms($1) AS now),
new AS (
    INSERT INTO items (
        queue_key, id, status, priority, deliver_after, created_at, bytes, is_json, expires_at, content_type, headers,
        ttl_ms, correlation_id, max_retries, payload
    )
    SELECT
        queue_key, id, CASE WHEN deliver_after <= now THEN 0 ELSE 5 END, priority, deliver_after, created_at, bytes,
        is_json, expires_at, content_type, headers, ttl_ms, correlation_id, max_retries, payload
    FROM pg_temp.landing, t ORDER BY id
    RETURNING queue_key, id, status, priority, deliver_after, created_at, expires_at, bytes, correlation_id
),
told AS (
    INSERT INTO journal (
        seq, at, queue_key, id, event, priority, attempt, version, created_at, bytes, correlation_id
    )
    SELECT
        (SELECT pg_current_xact_id()::text::bigint << 20) | (row_number() OVER (ORDER BY id) - 1),
        created_at, queue_key, id, 0, priority, 0, 0, created_at, bytes, correlation_id
    FROM new
),
counted AS (
    INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
    SELECT queue_key, count(*), count(*) FILTER (WHERE status = 5), 0, 0, 0, sum(bytes) FROM new GROUP BY queue_key
)
SELECT queue_key, count(*) AS stored, min(deliver_after) AS visible_at, min(expires_at) AS expires_at
FROM new GROUP BY queue_key;

-- name: landed_more
-- $4, $5 the starts and ends of ranges of record numbers.
UPDATE landed SET at = clock_timestamp(), places = places + (
    SELECT range_agg(int8range(first, ends)) FROM unnest($4::bigint[], $5::bigint[]) AS u (first, ends)
)
WHERE node = $1 AND epoch = $2 AND lane = $3;
