-- Large payloads in pieces (stores/postgres/payloads/pieces.py).

-- A place is a payload's own: no other ever has it. Whose it is, is said by the one that names it: a message
-- (`items.piece_place`), an arrival on its way from another database (`arrivals.body`), or a stage.
CREATE TABLE pieces (
    place   bigint NOT NULL,
    number  integer NOT NULL,
    piece   bytea NOT NULL,
    PRIMARY KEY (place, number)
) WITH (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE pieces ALTER COLUMN piece SET STORAGE EXTERNAL;

-- Payloads on their way in, and those that nobody has a message for any more: sweeps delete these, piece by piece.
CREATE TABLE stages (
    place         bigint PRIMARY KEY,
    -- For whose quotas it counts, and how much of it has come.
    tenant        text COLLATE "C",
    bytes         bigint NOT NULL DEFAULT 0,
    is_abandoned  boolean NOT NULL DEFAULT false,
    -- When its server last said that it is at it.
    at            timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX stages_abandoned ON stages (place) WHERE is_abandoned;
