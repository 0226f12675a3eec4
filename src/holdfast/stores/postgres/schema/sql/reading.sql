-- Statements that read, and those that read under a lock before a write. $1 is the queue's key unless stated otherwise.

-- name: queue
SELECT queues.*, config, tenants.revision AS tenant_revision, now_ms($3) AS now
FROM queues JOIN tenants USING (tenant) WHERE queues.tenant = $1 AND queue = $2 AND gone_at IS NULL;

-- name: queue_locked
SELECT queues.*, config, tenants.revision AS tenant_revision, now_ms($3) AS now
FROM queues JOIN tenants USING (tenant) WHERE queues.tenant = $1 AND queue = $2 AND gone_at IS NULL
FOR NO KEY UPDATE OF queues;

-- name: queue_by_key
SELECT queues.*, config, tenants.revision AS tenant_revision, now_ms($2) AS now
FROM queues JOIN tenants USING (tenant) WHERE key = $1;

-- name: lock_by_ids
SELECT {life} FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[]) ORDER BY id FOR UPDATE;

-- name: expired
SELECT {life} FROM items
WHERE queue_key = $1 AND status = 1 AND lease_expires_at <= $2 ORDER BY lease_expires_at LIMIT $3 FOR UPDATE;

-- name: overdue
SELECT {life} FROM items
WHERE queue_key = $1 AND expires_at IS NOT NULL AND status IN (0, 4, 5) AND expires_at <= $2
ORDER BY expires_at LIMIT $3 FOR UPDATE;

-- name: kept
SELECT {life} FROM items
WHERE queue_key = $1 AND status = 2 AND keep_until <= $2 ORDER BY keep_until LIMIT $3 FOR UPDATE;

-- name: oldest
SELECT {life} FROM items WHERE queue_key = $1 ORDER BY id LIMIT $2 FOR UPDATE;

-- name: due
-- Up to $3 messages that a claim may take, under the queue's lock.
SELECT {whole} FROM items
WHERE queue_key = $1 AND status = 0 AND deliver_after <= $2 AND (expires_at IS NULL OR expires_at > $2)
ORDER BY priority, deliver_after, id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: of_group
-- $2 the group, $3 the limit.
SELECT {whole} FROM items
WHERE queue_key = $1 AND group_name = $2 AND status IN (0, 4, 5) ORDER BY id LIMIT $3 FOR UPDATE;

-- name: by_id
SELECT {whole} FROM items WHERE queue_key = $1 AND id = $2;

-- name: by_ids
SELECT {whole} FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[]);

-- name: correlations
SELECT id, correlation_id FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[]);

-- name: peek_ready
SELECT {whole} FROM items
WHERE queue_key = $1 AND status = 0 AND deliver_after <= $2 AND (expires_at IS NULL OR expires_at > $2)
  AND group_name IS NULL
ORDER BY priority, deliver_after, id LIMIT $3;

-- name: peek_delayed
SELECT {whole} FROM items
WHERE queue_key = $1 AND status = 5 AND deliver_after <= $2 AND (expires_at IS NULL OR expires_at > $2)
  AND group_name IS NULL
ORDER BY deliver_after LIMIT $3;

-- name: peek_groups
-- The oldest messages of each group without a message in flight.
WITH RECURSIVE names AS (
    (
        SELECT group_name FROM items
        WHERE queue_key = $1 AND group_name IS NOT NULL AND status IN (0, 4, 5) ORDER BY group_name LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT items.group_name FROM items
        WHERE queue_key = $1 AND items.group_name > names.group_name AND status IN (0, 4, 5)
        ORDER BY items.group_name LIMIT 1
    )
    FROM names WHERE names.group_name IS NOT NULL
)
SELECT {whole} FROM names CROSS JOIN LATERAL (
    SELECT * FROM items
    WHERE queue_key = $1 AND group_name = names.group_name AND status IN (0, 4, 5)
      AND (expires_at IS NULL OR expires_at > $2)
    ORDER BY id LIMIT $3
) AS items
WHERE NOT EXISTS (
    SELECT 1 FROM items AS held WHERE held.queue_key = $1 AND held.group_name = names.group_name AND held.status = 1
);

-- name: browse
-- $2 the id to continue after, $3 the limit, $4 the statuses.
SELECT {whole} FROM items WHERE queue_key = $1 AND id > $2 AND status = ANY($4::smallint[]) ORDER BY id LIMIT $3;

-- name: browse_failed
SELECT {whole} FROM items WHERE queue_key = $1 AND id > $2 AND status = 3 ORDER BY id LIMIT $3;

-- name: lock_behind
SELECT {life} FROM items
WHERE queue_key = $1 AND id > $2 AND status = ANY($4::smallint[]) ORDER BY id LIMIT $3 FOR UPDATE;

-- name: lock_failed_behind
SELECT {life} FROM items WHERE queue_key = $1 AND id > $2 AND status = 3 ORDER BY id LIMIT $3 FOR UPDATE;

-- name: counts
-- $1 keys of queues, $2 a fixed time or NULL.
WITH RECURSIVE t AS MATERIALIZED (SELECT now_ms($2) AS now),
sums AS MATERIALIZED (
    SELECT
        queue_key, sum(waiting)::bigint AS waiting, sum(delayed)::bigint AS delayed,
        sum(in_flight)::bigint AS in_flight, sum(failed)::bigint AS failed, sum(kept)::bigint AS kept,
        sum(bytes)::bigint AS bytes
    FROM all_counts WHERE queue_key = ANY($1::bigint[]) GROUP BY queue_key
),
levels AS (
    SELECT key, (
        SELECT priority FROM items WHERE queue_key = key AND status = 0 ORDER BY priority LIMIT 1
    ) AS priority
    FROM unnest($1::bigint[]) AS key
    UNION ALL
    SELECT key, (
        SELECT items.priority FROM items
        WHERE queue_key = key AND status = 0 AND items.priority > levels.priority
        ORDER BY items.priority LIMIT 1
    )
    FROM levels WHERE levels.priority IS NOT NULL
),
oldest AS MATERIALIZED (
    SELECT key, min((
        SELECT deliver_after FROM items
        WHERE queue_key = key AND status = 0 AND items.priority = levels.priority ORDER BY deliver_after LIMIT 1
    )) AS at
    FROM levels WHERE priority IS NOT NULL GROUP BY key
)
SELECT
    keys.key, t.now, coalesce(waiting, 0) AS waiting, coalesce(in_flight, 0) AS in_flight,
    coalesce(failed, 0) AS failed, coalesce(kept, 0) AS kept, coalesce(bytes, 0) AS bytes,
    coalesce(delayed, 0)
        - (SELECT count(*) FROM items WHERE queue_key = keys.key AND status = 5 AND deliver_after <= now)
        + (SELECT count(*) FROM items WHERE queue_key = keys.key AND status = 4 AND deliver_after > now) AS delayed,
    least(
        (SELECT at FROM oldest WHERE oldest.key = keys.key),
        (SELECT min(deliver_after) FROM items WHERE queue_key = keys.key AND status = 5 AND deliver_after <= now),
        (SELECT min(deliver_after) FROM items WHERE queue_key = keys.key AND status = 4 AND deliver_after <= now)
    ) AS oldest_at
FROM unnest($1::bigint[]) AS keys (key) CROSS JOIN t LEFT JOIN sums ON sums.queue_key = keys.key;

-- name: next_at
-- When a claim may next find something. $2 whether the queue has groups: then the end of a head's TTL frees its group.
SELECT least(
    (SELECT min(deliver_after) FROM items WHERE queue_key = $1 AND status = 5),
    (SELECT min(lease_expires_at) FROM items WHERE queue_key = $1 AND status = 1),
    (SELECT deliver_after FROM items WHERE queue_key = $1 AND status = 0 LIMIT 1),
    CASE WHEN $2 THEN (
        SELECT min(expires_at) FROM items WHERE queue_key = $1 AND expires_at IS NOT NULL AND status IN (0, 4, 5)
    ) END
) AS next_at;

-- name: journal
-- $1 the number to continue after, $2 the number to stop before, $3 the limit.
SELECT journal.*, queues.tenant, queues.queue FROM journal JOIN queues ON queues.key = journal.queue_key
WHERE seq > $1 AND seq < $2 ORDER BY seq LIMIT $3;

-- name: horizon
-- The number below which no open transaction can write, where readers stop; and the last number.
SELECT
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 20 AS ends,
    coalesce((SELECT seq FROM journal ORDER BY seq DESC LIMIT 1), 0) AS last;

-- name: trim
-- $1 the time up to which events have expired, $2 the limit.
DELETE FROM journal WHERE seq IN (SELECT seq FROM (SELECT seq, at FROM journal ORDER BY seq LIMIT $2) AS first WHERE at <= $1);

-- name: fold
-- Adds up to $1 lines to the sums, and returns their number.
WITH lines AS (
    DELETE FROM count_lines WHERE ctid IN (SELECT ctid FROM count_lines LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING *
),
folded AS (
    INSERT INTO counts AS c (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
    SELECT queue_key, sum(waiting), sum(delayed), sum(in_flight), sum(failed), sum(kept), sum(bytes)
    FROM lines GROUP BY queue_key ORDER BY queue_key
    ON CONFLICT (queue_key) DO UPDATE SET
        waiting = c.waiting + excluded.waiting, delayed = c.delayed + excluded.delayed,
        in_flight = c.in_flight + excluded.in_flight, failed = c.failed + excluded.failed,
        kept = c.kept + excluded.kept, bytes = c.bytes + excluded.bytes
)
SELECT count(*) AS lines FROM lines;
