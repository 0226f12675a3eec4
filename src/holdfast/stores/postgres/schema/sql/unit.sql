-- Reads and writes of the shared logic's steps, apart from the lives of messages. $1 is the queue's key.

-- name: has_messages
SELECT EXISTS (SELECT 1 FROM items WHERE queue_key = $1);

-- name: move
-- $2 ids, $3 the key of the target queue.
UPDATE items SET queue_key = $3 WHERE queue_key = $1 AND id = ANY($2::bigint[]);

-- name: edit
UPDATE items SET
    payload = $3, content_type = $4, is_json = $5, bytes = $6, piece_place = $7, piece_size = $8, piece_checksum = $9
WHERE queue_key = $1 AND id = $2;

-- name: states
SELECT id, state FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[]);

-- name: put_state
UPDATE items SET state = $3 WHERE queue_key = $1 AND id = $2;

-- name: open_claims
-- $2 the consumer, $3 the number of one claim, or NULL for all.
SELECT number, claimed_at, receipts FROM ledgers
WHERE queue_key = $1 AND consumer = $2 AND ($3::bigint IS NULL OR number = $3) ORDER BY number;

-- name: open_claims_upto
SELECT number, claimed_at, receipts FROM ledgers
WHERE queue_key = $1 AND consumer = $2 AND number <= $3 ORDER BY number FOR UPDATE;

-- name: put_claim
INSERT INTO ledgers (queue_key, consumer, number, claimed_at, receipts) VALUES ($1, $2, $3, $4, $5);

-- name: close_claims
DELETE FROM ledgers WHERE queue_key = $1 AND consumer = $2 AND number = ANY($3::bigint[]);

-- name: ledger_end
SELECT closed_upto FROM ledger_ends WHERE queue_key = $1 AND consumer = $2;

-- name: put_ledger_end
INSERT INTO ledger_ends AS e VALUES ($1, $2, $3)
ON CONFLICT (queue_key, consumer) DO UPDATE SET closed_upto = greatest(e.closed_upto, excluded.closed_upto);
