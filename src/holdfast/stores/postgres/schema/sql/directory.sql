-- Tenants and queues, and the usage of each tenant.

-- name: tenant
SELECT * FROM tenants WHERE tenant = $1;

-- name: tenant_locked
SELECT * FROM tenants WHERE tenant = $1 FOR UPDATE;

-- name: tenants
SELECT * FROM tenants ORDER BY tenant;

-- name: make_tenant
-- $2 the tenant's number, or NULL for the next number of this shard, which is $3.
INSERT INTO tenants (tenant, tenant_id, config)
VALUES ($1, coalesce($2, nextval('tenant_numbers') * 1024 + $3), $4) ON CONFLICT DO NOTHING;

-- name: put_tenant
UPDATE tenants SET config = $2, revision = revision + 1, granted_messages = 0, granted_bytes = 0
WHERE tenant = $1 RETURNING *;

-- name: copy_tenant
-- $4 the home's revision of the configuration. An older one changes nothing.
INSERT INTO tenants AS t (tenant, tenant_id, config, home_revision) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant) DO UPDATE
SET config = excluded.config, home_revision = $4, revision = t.revision + 1, granted_messages = 0, granted_bytes = 0
WHERE t.home_revision < $4;

-- name: note_copies
-- $2 the databases that must receive the configuration.
INSERT INTO tenant_copies (tenant, shard) SELECT $1, unnest($2::integer[]) ON CONFLICT DO NOTHING;

-- name: due_copies
-- $1 a tenant, or NULL for all.
SELECT tenant, shard, tenant_id, config, revision FROM tenant_copies JOIN tenants USING (tenant)
WHERE $1::text IS NULL OR tenant = $1 ORDER BY tenant, shard LIMIT $2;

-- name: copied
-- Only if the tenant has not changed since revision $3.
DELETE FROM tenant_copies USING tenants
WHERE tenant_copies.tenant = $1 AND tenant_copies.shard = $2 AND tenants.tenant = $1 AND tenants.revision = $3;

-- name: directory_count
SELECT count(*) FROM directory WHERE tenant = $1;

-- name: directory_find
SELECT queue_id FROM directory WHERE tenant = $1 AND queue = $2;

-- name: directory_put
WITH number AS (
    UPDATE tenants SET next_queue_id = next_queue_id + 1 WHERE tenant = $1 RETURNING next_queue_id - 1 AS queue_id
)
INSERT INTO directory (tenant, queue, queue_id) SELECT $1, $2, queue_id FROM number RETURNING queue_id;

-- name: directory_drop
DELETE FROM directory WHERE tenant = $1 AND queue = $2 AND queue_id = $3;

-- name: make_queue
INSERT INTO queues (tenant, queue, tenant_id, queue_id, policy, lease_ms, max_lease_ms, keeps)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING;

-- name: queues_of
-- Without queues that are still arriving here.
SELECT * FROM queues
WHERE tenant = $1 AND gone_at IS NULL AND moving_to IS DISTINCT FROM (SELECT shard FROM cluster) ORDER BY queue;

-- name: slot_owner
-- The owner of the slot, as this database knows it, and whether the slot is moving.
SELECT slots.shard, slot_moves.slot IS NOT NULL AS is_moving
FROM slots LEFT JOIN slot_moves USING (slot) WHERE slots.slot = $1;

-- name: change_queue
-- A null argument leaves its column unchanged.
WITH q AS (
    UPDATE queues SET
        policy = coalesce($3, policy), lease_ms = coalesce($4, lease_ms), max_lease_ms = coalesce($5, max_lease_ms),
        keeps = coalesce($6, keeps), is_paused = coalesce($7, is_paused), drain_until = coalesce($8, drain_until),
        revision = revision + 1
    WHERE tenant = $1 AND queue = $2 AND gone_at IS NULL AND moving_to IS NULL RETURNING *
),
unscheduled AS (DELETE FROM schedules USING q WHERE schedules.queue_key = q.key AND $8 IS NOT NULL)
SELECT * FROM q;

-- name: lock_queue
SELECT has_groups FROM queues WHERE key = $1 FOR NO KEY UPDATE;

-- name: has_groups
UPDATE queues SET has_groups = true, highest_grouped = greatest(highest_grouped, $2) WHERE key = $1;

-- name: usage
-- The tenant's usage on this database, including arriving messages. The lines that are not summed up yet are few.
SELECT
    coalesce((SELECT messages FROM usage WHERE tenant = $1), 0) + coalesce(sum(messages), 0)::bigint AS messages,
    coalesce((SELECT bytes FROM usage WHERE tenant = $1), 0) + coalesce(sum(bytes), 0)::bigint AS bytes
FROM (
    SELECT waiting + in_flight + failed + kept AS messages, bytes FROM count_lines
    WHERE (SELECT tenant FROM queues WHERE key = queue_key) = $1
    UNION ALL
    SELECT messages, bytes FROM arrivals WHERE (SELECT tenant FROM queues WHERE key = queue_key) = $1
) AS rest;

-- name: grants
SELECT shard, messages, bytes, version FROM grants WHERE tenant = $1;

-- name: put_grant
INSERT INTO grants AS g (tenant, shard, messages, bytes) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, shard) DO UPDATE SET messages = $3, bytes = $4, version = g.version + 1 RETURNING version;

-- name: lower_grant
UPDATE grants SET messages = $4, bytes = $5 WHERE tenant = $1 AND shard = $2 AND version = $3;

-- name: take_grant
-- On the shard itself. A late, older grant changes nothing.
UPDATE tenants SET granted_messages = $2, granted_bytes = $3, grant_version = $4
WHERE tenant = $1 AND grant_version < $4;

-- name: lower_granted
-- For the tenant of the queue $1.
UPDATE tenants SET
    granted_messages = greatest(granted_messages - $2, 0), granted_bytes = greatest(granted_bytes - $3, 0)
WHERE tenant = (SELECT tenant FROM queues WHERE key = $1);

-- name: known_keys
-- $2 keys, $3 the time.
SELECT key, id, correlation_id FROM seen_keys WHERE queue_key = $1 AND key = ANY($2::text[]) AND ends_at > $3;

-- name: remember_keys
-- $2-$4 in the order of keys; $5 when the window ends, $6 the time. Returns the new keys.
INSERT INTO seen_keys AS k (queue_key, key, id, correlation_id, ends_at)
SELECT $1, u.key, u.id, u.correlation_id, $5
FROM unnest($2::text[], $3::bigint[], $4::text[]) AS u (key, id, correlation_id)
ON CONFLICT (queue_key, key) DO UPDATE
SET id = excluded.id, correlation_id = excluded.correlation_id, ends_at = excluded.ends_at WHERE k.ends_at <= $6
RETURNING key;
