-- Bulk loads, several of them at once (bulk/bulk_insert.py).

-- name: loading_queues
-- $1, $2 names; $3 a fixed time for tests, or NULL. None of these queues can change until this transaction ends.
SELECT queues.*, tenants.config, tenants.revision AS tenant_revision, now_ms($3) AS now
FROM queues JOIN tenants USING (tenant)
WHERE (queues.tenant, queue) IN (SELECT * FROM unnest($1::text[], $2::text[])) AND gone_at IS NULL
ORDER BY key FOR SHARE OF queues;

-- name: load_keys
-- $1-$5 in the order of queues and keys; $6 the time. Returns the ids of the messages with a new key.
INSERT INTO seen_keys AS k (queue_key, key, id, correlation_id, ends_at)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
ON CONFLICT (queue_key, key) DO UPDATE
SET id = excluded.id, correlation_id = excluded.correlation_id, ends_at = excluded.ends_at WHERE k.ends_at <= $6
RETURNING id;

-- name: load_unknown
-- $1-$3 keys with their messages' ids; $4 the time. Returns the ids of the messages whose key is unknown.
SELECT u.id FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS u (queue_key, key, id)
WHERE NOT EXISTS (
    SELECT 1 FROM seen_keys WHERE seen_keys.queue_key = u.queue_key AND seen_keys.key = u.key AND ends_at > $4
);
