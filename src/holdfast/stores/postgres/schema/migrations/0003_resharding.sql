-- Queues that move to another database, slot by slot (stores/postgres/cluster/slot_moves.py).

-- The shard with the rows that exist once per tenant. It does not change when slots move.
ALTER TABLE slots ADD COLUMN home integer;
UPDATE slots SET home = shard;
ALTER TABLE slots ALTER COLUMN home SET NOT NULL;

-- If set, no transaction here touches this queue. On the source it is the target's number, on the target the target's
-- own number.
ALTER TABLE queues ADD COLUMN moving_to integer;
CREATE INDEX queues_moving ON queues (key) WHERE moving_to IS NOT NULL AND gone_at IS NULL;

-- On the source: slots that are moving, from when their queues are blocked until none of their rows is left here.
CREATE TABLE slot_moves (
    slot        smallint PRIMARY KEY,
    to_shard    integer NOT NULL,
    -- The target owns the slot now.
    is_decided  boolean NOT NULL DEFAULT false,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
