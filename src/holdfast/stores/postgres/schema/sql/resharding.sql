-- Moves of slots between databases (cluster/slot_moves.py).

-- name: held_queues
-- Queues that are leaving this database.
SELECT * FROM queues
WHERE moving_to IS NOT NULL AND gone_at IS NULL AND moving_to <> (SELECT shard FROM cluster) ORDER BY key;

-- name: arriving_tenant
-- A tenant that is known here already receives changes anyway.
INSERT INTO tenants (tenant, tenant_id, config, home_revision) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: arriving_queue
INSERT INTO queues (
    tenant, queue, tenant_id, queue_id, policy, revision, lease_ms, max_lease_ms, keeps, is_paused, has_groups,
    highest_grouped, moving_to
)
VALUES ($1, $2, $3, $4, $5, $6 + 1, $7, $8, $9, $10, $11, $12, $13)
ON CONFLICT (tenant, queue) WHERE gone_at IS NULL DO NOTHING;

-- name: queue_names
SELECT key, tenant, queue FROM queues WHERE key > $1 AND gone_at IS NULL;

-- name: queues_by_keys
SELECT key, tenant, queue, drain_until FROM queues WHERE key = ANY($1::bigint[]) AND gone_at IS NULL;

-- name: decide_slot
-- Returns no row if the move was cancelled.
UPDATE slot_moves SET is_decided = true WHERE slot = $1 AND to_shard = $2 RETURNING slot;

-- name: old_slot_moves
SELECT slot, to_shard, is_decided FROM slot_moves WHERE at < clock_timestamp() - make_interval(secs => $1);

-- name: call_off_slot
-- Makes the slot's own database its target, which marks the move as cancelled.
UPDATE slot_moves SET to_shard = (SELECT shard FROM cluster) WHERE slot = $1 AND NOT is_decided RETURNING slot;

-- name: arriving_queues
SELECT key, tenant, queue FROM queues WHERE gone_at IS NULL AND moving_to = (SELECT shard FROM cluster);

-- name: drop_arriving
-- Deletes a queue that no server has seen here yet.
DELETE FROM queues WHERE key = $1 AND moving_to IS NOT NULL;

-- name: release_queues
UPDATE queues SET moving_to = NULL, revision = revision + 1 WHERE key = ANY($1::bigint[]);

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
-- $1 the owner of each slot.
UPDATE slots SET shard = s FROM unnest($1::integer[]) WITH ORDINALITY AS u (s, n) WHERE slot = n - 1 AND shard <> s;
