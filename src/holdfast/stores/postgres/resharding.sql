-- Slots from one database to another (resharding.py).

-- name: held_queues
-- On their way from here.
SELECT * FROM queues
WHERE moving_to IS NOT NULL AND gone_at IS NULL AND moving_to <> (SELECT shard FROM cluster) ORDER BY key;

-- name: arriving_tenant
-- Where it is known already, it is told of changes anyway.
INSERT INTO tenants (tenant, tenant_id, config, home_revision) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: arriving_queue
INSERT INTO queues (
    tenant, queue, tenant_id, queue_id, policy, revision, lease_ms, max_lease_ms, keeps, is_paused, has_groups,
    highest_grouped, moving_to
)
VALUES ($1, $2, $3, $4, $5, $6 + 1, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (tenant, queue) WHERE gone_at IS NULL DO NOTHING;

-- name: sums
SELECT
    coalesce(sum(waiting), 0)::bigint, coalesce(sum(delayed), 0)::bigint, coalesce(sum(in_flight), 0)::bigint,
    coalesce(sum(failed), 0)::bigint, coalesce(sum(kept), 0)::bigint, coalesce(sum(bytes), 0)::bigint
FROM all_counts WHERE queue_key = $1;

-- name: put_sums
INSERT INTO counts (queue_key, waiting, delayed, in_flight, failed, kept, bytes) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (queue_key) DO UPDATE
SET waiting = $2, delayed = $3, in_flight = $4, failed = $5, kept = $6, bytes = $7;

-- name: put_slots
-- $1 the owner of each.
UPDATE slots SET shard = s FROM unnest($1::integer[]) WITH ORDINALITY AS u (s, n) WHERE slot = n - 1 AND shard <> s;
