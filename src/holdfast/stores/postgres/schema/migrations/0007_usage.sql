-- The usage of each tenant, for its quotas (stores/postgres/queues/quota_grants.py).

-- The sums of `counts` over a tenant's queues. Readers add the lines that are not summed up yet.
CREATE TABLE usage (
    tenant    text COLLATE "C" PRIMARY KEY,
    messages  bigint NOT NULL,
    bytes     bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- Triggers keep it, so that servers of the previous version keep it too.
CREATE FUNCTION note_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO usage AS u (tenant, messages, bytes)
        SELECT tenant, sum(waiting + in_flight + failed + kept), sum(n.bytes)
        FROM new_counts AS n JOIN queues ON key = queue_key GROUP BY tenant ORDER BY tenant
        ON CONFLICT (tenant) DO UPDATE
        SET messages = u.messages + excluded.messages, bytes = u.bytes + excluded.bytes;
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO usage AS u (tenant, messages, bytes)
        SELECT tenant, sum(d.messages), sum(d.bytes)
        FROM (
            SELECT queue_key, waiting + in_flight + failed + kept AS messages, bytes FROM new_counts
            UNION ALL
            SELECT queue_key, -(waiting + in_flight + failed + kept), -bytes FROM old_counts
        ) AS d JOIN queues ON key = queue_key GROUP BY tenant ORDER BY tenant
        ON CONFLICT (tenant) DO UPDATE
        SET messages = u.messages + excluded.messages, bytes = u.bytes + excluded.bytes;
    ELSE
        INSERT INTO usage AS u (tenant, messages, bytes)
        SELECT tenant, -sum(waiting + in_flight + failed + kept), -sum(o.bytes)
        FROM old_counts AS o JOIN queues ON key = queue_key GROUP BY tenant ORDER BY tenant
        ON CONFLICT (tenant) DO UPDATE
        SET messages = u.messages + excluded.messages, bytes = u.bytes + excluded.bytes;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER counts_inserted AFTER INSERT ON counts
    REFERENCING NEW TABLE AS new_counts FOR EACH STATEMENT EXECUTE FUNCTION note_usage();
CREATE TRIGGER counts_updated AFTER UPDATE ON counts
    REFERENCING OLD TABLE AS old_counts NEW TABLE AS new_counts FOR EACH STATEMENT EXECUTE FUNCTION note_usage();
CREATE TRIGGER counts_deleted AFTER DELETE ON counts
    REFERENCING OLD TABLE AS old_counts FOR EACH STATEMENT EXECUTE FUNCTION note_usage();

-- The creation of the triggers has locked `counts` against changes until the end of this transaction.
INSERT INTO usage (tenant, messages, bytes)
SELECT tenant, sum(waiting + in_flight + failed + kept), sum(c.bytes)
FROM counts AS c JOIN queues ON key = queue_key GROUP BY tenant;
