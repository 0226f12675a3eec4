-- Queues that go to another database, slot by slot (stores/postgres/cluster/resharding.py).

-- Where what is one per tenant is kept: that does not move with the slots.
ALTER TABLE slots ADD COLUMN home integer;
UPDATE slots SET home = shard;
ALTER TABLE slots ALTER COLUMN home SET NOT NULL;

-- Set: nothing here touches this queue. On the database that it leaves, where it goes; on the one where it arrives, that
-- one's own number.
ALTER TABLE queues ADD COLUMN moving_to integer;
CREATE INDEX queues_moving ON queues (key) WHERE moving_to IS NOT NULL AND gone_at IS NULL;

-- On the database that a slot leaves, from when its queues are held until nothing of them is left here.
CREATE TABLE slot_moves (
    slot        smallint PRIMARY KEY,
    to_shard    integer NOT NULL,
    -- The slot is the other's now.
    is_decided  boolean NOT NULL DEFAULT false,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
