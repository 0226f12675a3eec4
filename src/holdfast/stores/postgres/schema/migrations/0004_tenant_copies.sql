-- A tenant's configuration is its home's; every other database has a copy (stores/postgres/queues/tenant_copies.py).

-- Of a copy: which of the home's revisions it is.
ALTER TABLE tenants ADD COLUMN home_revision bigint NOT NULL DEFAULT 0;

-- On the tenant's home: databases that have not been told of its last change.
CREATE TABLE tenant_copies (
    tenant  text COLLATE "C" NOT NULL,
    shard   integer NOT NULL,
    PRIMARY KEY (tenant, shard)
);
