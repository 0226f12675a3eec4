-- The calls of servers' logs that are stored here: for each opening of a log and each database (`lane`), the record
-- numbers (`places`). Written in the transaction that stores the calls and kept for ever, so that no call is stored
-- twice, however late it comes.
CREATE TABLE landed (
    node    uuid NOT NULL,
    epoch   bigint NOT NULL,
    lane    integer NOT NULL,
    places  int8multirange NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (node, epoch, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
