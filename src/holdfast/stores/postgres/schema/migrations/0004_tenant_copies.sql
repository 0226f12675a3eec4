-- A tenant's configuration belongs to its home; every other database has a copy
-- (stores/postgres/queues/tenant_copies.py).

-- The home's revision of this copy.
ALTER TABLE tenants ADD COLUMN home_revision bigint NOT NULL DEFAULT 0;

-- On the tenant's home: databases that have not received its last change.
CREATE TABLE tenant_copies (
    tenant  text COLLATE "C" NOT NULL,
    shard   integer NOT NULL,
    PRIMARY KEY (tenant, shard)
);
