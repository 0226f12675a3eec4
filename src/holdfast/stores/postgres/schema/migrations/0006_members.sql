-- The databases of a store (stores/postgres/schema/membership.py).

-- The name of this database for ever, whatever its URL. A copy has it too.
CREATE TABLE identity (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    database_id  uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO identity DEFAULT VALUES;

-- On one database of the store, empty on all others: every database of the store, with its number. It is written before
-- the databases themselves know, so that an interrupted migration is finished as it began.
CREATE TABLE members (
    database_id  uuid PRIMARY KEY,
    shard        integer NOT NULL UNIQUE,
    cluster_id   uuid NOT NULL,
    -- The store was made with this database, so it has a share of the slots from the beginning.
    is_founder   boolean NOT NULL
);
