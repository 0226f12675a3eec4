-- Large payloads in pieces (payloads/pieces.py), and uploads in progress (payloads/staging.py). The columns call a blob
-- id `place`.
--
-- Pieces without a message are written without waiting for the disk: the database's log keeps the order, so the commit
-- that gives them to a message waits for them too. Hence `set_config` until the end of the transaction.

-- name: stage_first
-- $1 the blob id, $2 the tenant, $3 the piece.
WITH mine AS (INSERT INTO stages (place, tenant, bytes) VALUES ($1, $2, octet_length($3::bytea)) RETURNING place)
INSERT INTO pieces (place, number, piece)
SELECT place, 0, $3 FROM mine WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL RETURNING number;

-- name: stage_more
-- $2 the piece's number. Returns no row if the upload was abandoned.
WITH mine AS (
    UPDATE stages SET bytes = bytes + octet_length($3::bytea), at = clock_timestamp()
    WHERE place = $1 AND NOT is_abandoned RETURNING place
)
INSERT INTO pieces (place, number, piece)
SELECT place, $2::integer, $3 FROM mine WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL RETURNING number;

-- name: keep_stages
UPDATE stages SET at = clock_timestamp() WHERE place = ANY($1::bigint[]) AND NOT is_abandoned;

-- name: take_stages
-- The payloads belong to messages from this transaction on. Missing ones were abandoned or are on another database.
DELETE FROM stages WHERE place = ANY($1::bigint[]) AND NOT is_abandoned RETURNING place;

-- name: give_up_stage
UPDATE stages SET is_abandoned = true WHERE place = $1;

-- name: give_up_old_stages
-- Abandons uploads without a report for $1 seconds.
UPDATE stages SET is_abandoned = true
WHERE NOT is_abandoned AND at < clock_timestamp() - make_interval(secs => $1);

-- name: give_up_places
-- Marks payloads that no message has any more as abandoned.
INSERT INTO stages (place, is_abandoned) SELECT unnest($1::bigint[]), true;

-- name: given_up
-- Skips payloads that other sweeps are deleting.
SELECT place FROM stages WHERE is_abandoned ORDER BY place LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: has_given_up
SELECT EXISTS (SELECT 1 FROM stages WHERE is_abandoned) AS some;

-- name: drop_pieces
-- Deletes up to $2 pieces of a payload.
DELETE FROM pieces WHERE place = $1 AND number IN (
    SELECT number FROM pieces WHERE place = $1 ORDER BY number LIMIT $2
);

-- name: drop_stage
DELETE FROM stages WHERE place = $1;

-- name: put_piece
INSERT INTO pieces (place, number, piece) VALUES ($1, $2, $3);

-- name: put_places
-- $2-$5 messages of this queue that were just enqueued, and their payloads.
UPDATE items SET piece_place = u.place, piece_size = u.size, piece_checksum = u.checksum
FROM (
    SELECT $1::bigint AS queue_key, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
        AS v (id, place, size, checksum)
) AS u WHERE items.queue_key = u.queue_key AND items.id = u.id;

-- name: read_piece
-- $2-$4 the message, the blob id of its payload, and the piece's number. Returns no row if the message is gone or has
-- another payload.
SELECT piece FROM items LEFT JOIN pieces ON pieces.place = items.piece_place AND pieces.number = $4
WHERE queue_key = $1 AND id = $2 AND piece_place = $3;

-- name: piece
SELECT piece FROM pieces WHERE place = $1 AND number = $2;

-- name: arriving_piece
-- Only while the arrival $1 exists; also refreshes its time.
WITH mine AS (UPDATE arrivals SET at = clock_timestamp() WHERE move = $1 RETURNING move)
INSERT INTO pieces (place, number, piece)
SELECT $2::bigint, $3::integer, $4::bytea FROM mine WHERE set_config('synchronous_commit', 'off', true) IS NOT NULL
RETURNING number;

-- name: staged
-- The tenant's uploads in progress here, except the one with the blob id $2.
SELECT count(*) AS uploads, coalesce(sum(stages.bytes), 0)::bigint AS uploaded
FROM stages WHERE stages.tenant = $1 AND NOT is_abandoned AND place <> $2;
