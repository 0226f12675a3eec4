-- What of the servers' logs is stored here: of each opening of a log, and each lane of it, the places. Written in the
-- transaction that stores them, and kept: so nothing that was stored comes a second time, however late.
CREATE TABLE landed (
    node    uuid NOT NULL,
    epoch   bigint NOT NULL,
    lane    integer NOT NULL,
    places  int8multirange NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (node, epoch, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
