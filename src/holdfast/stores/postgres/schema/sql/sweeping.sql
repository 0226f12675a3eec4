-- Statements of sweeps, over all queues of a database.

-- name: ends
-- The first end of a lease, TTL, keeping time or delay of each queue that has one. Each part steps from queue to queue
-- through its index.
WITH RECURSIVE leased AS (
    (SELECT queue_key, lease_expires_at AS at FROM items WHERE status = 1 ORDER BY queue_key, lease_expires_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM leased CROSS JOIN LATERAL (
        SELECT items.queue_key, lease_expires_at FROM items WHERE status = 1 AND items.queue_key > leased.queue_key
        ORDER BY items.queue_key, lease_expires_at LIMIT 1
    ) AS next
),
mortal AS (
    (
        SELECT queue_key, expires_at AS at FROM items WHERE expires_at IS NOT NULL AND status IN (0, 4, 5)
        ORDER BY queue_key, expires_at LIMIT 1
    )
    UNION ALL
    SELECT next.* FROM mortal CROSS JOIN LATERAL (
        SELECT items.queue_key, expires_at FROM items
        WHERE expires_at IS NOT NULL AND status IN (0, 4, 5) AND items.queue_key > mortal.queue_key
        ORDER BY items.queue_key, expires_at LIMIT 1
    ) AS next
),
kept AS (
    (SELECT queue_key, keep_until AS at FROM items WHERE status = 2 ORDER BY queue_key, keep_until LIMIT 1)
    UNION ALL
    SELECT next.* FROM kept CROSS JOIN LATERAL (
        SELECT items.queue_key, keep_until FROM items WHERE status = 2 AND items.queue_key > kept.queue_key
        ORDER BY items.queue_key, keep_until LIMIT 1
    ) AS next
),
delayed AS (
    (SELECT queue_key, deliver_after AS at FROM items WHERE status = 5 ORDER BY queue_key, deliver_after LIMIT 1)
    UNION ALL
    SELECT next.* FROM delayed CROSS JOIN LATERAL (
        SELECT items.queue_key, deliver_after FROM items WHERE status = 5 AND items.queue_key > delayed.queue_key
        ORDER BY items.queue_key, deliver_after LIMIT 1
    ) AS next
)
SELECT queue_key, min(at) AS at FROM (
    SELECT * FROM leased UNION ALL SELECT * FROM mortal UNION ALL SELECT * FROM kept UNION ALL SELECT * FROM delayed
) AS every GROUP BY queue_key;

-- name: forget_keys
-- Deletes up to $2 keys whose window had ended by $1.
DELETE FROM seen_keys WHERE (queue_key, key) IN (
    SELECT queue_key, key FROM seen_keys WHERE ends_at <= $1 ORDER BY ends_at LIMIT $2 FOR UPDATE SKIP LOCKED
);

-- name: next_key_end
SELECT min(ends_at) AS at FROM seen_keys;

-- name: draining
SELECT
    key, tenant, queue, queue_id, drain_until,
    EXISTS (SELECT 1 FROM items WHERE queue_key = key AND status = 1) AS has_leases
FROM queues WHERE drain_until IS NOT NULL AND gone_at IS NULL;

-- name: moving
SELECT key FROM queues WHERE moving_to IS NOT NULL AND gone_at IS NULL;

-- name: end_queue
-- Deletes the queue's rows other than messages. Its key stays taken, because the journal refers to it.
WITH keys AS (DELETE FROM seen_keys WHERE queue_key = $1),
claims AS (DELETE FROM ledgers WHERE queue_key = $1),
closed AS (DELETE FROM ledger_ends WHERE queue_key = $1),
planned AS (DELETE FROM schedules WHERE queue_key = $1)
UPDATE queues SET gone_at = $2 WHERE key = $1;

-- name: strays
-- Deleted queues with messages: an enqueue that began before the deletion has committed after it.
SELECT key FROM queues WHERE gone_at IS NOT NULL AND EXISTS (SELECT 1 FROM items WHERE queue_key = key) LIMIT $1;

-- name: forget_queues
-- Deletes up to $2 queues that the journal no longer refers to.
DELETE FROM queues WHERE key IN (SELECT key FROM queues WHERE gone_at IS NOT NULL AND gone_at <= $1 LIMIT $2);
