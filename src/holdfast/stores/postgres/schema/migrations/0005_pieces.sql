-- Large payloads in pieces (stores/postgres/payloads/pieces.py).

-- `place` is the blob id of one payload and is never used for another. Its owner is the row that names it: a message
-- (`items.piece_place`), an arrival from another database (`arrivals.body`), or a stage.
CREATE TABLE pieces (
    place   bigint NOT NULL,
    number  integer NOT NULL,
    piece   bytea NOT NULL,
    PRIMARY KEY (place, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE pieces ALTER COLUMN piece SET STORAGE EXTERNAL;

-- Payloads being uploaded, and abandoned payloads, which sweeps delete piece by piece.
CREATE TABLE stages (
    place         bigint PRIMARY KEY,
    -- The tenant whose quotas it counts for, and the bytes received so far.
    tenant        text COLLATE "C",
    bytes         bigint NOT NULL DEFAULT 0,
    is_abandoned  boolean NOT NULL DEFAULT false,
    -- When its server last reported that it is working on it.
    at            timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX stages_abandoned ON stages (place) WHERE is_abandoned;
