-- The statements of the hot path, and those that write every change. $1 is the queue's key; $2 a fixed time for tests,
-- or NULL for the database's own. Each statement reads the time once.
--
-- Statements that change rows by a list of ids put the queue's key into the list too and join by both. Otherwise the
-- planner, which has seen the table empty, would start with all rows of the queue.

-- name: enqueue
-- Equals holdfast.stores.logic.enqueue.enqueue: see shortcuts.py.
-- $3, $4 the revisions that this call was checked against: if the queue or its tenant has changed since, nothing is
-- written and `key` is NULL. $5 the reason for the journal. From $6 on the messages by column; messages in groups are
-- not claimable yet.
WITH t AS MATERIALIZED (SELECT now_ms($2) AS now),
q AS MATERIALIZED (
    SELECT queues.key, queues.is_paused FROM queues JOIN tenants USING (tenant)
    WHERE queues.key = $1 AND gone_at IS NULL AND drain_until IS NULL AND moving_to IS NULL
      AND queues.revision = $3 AND tenants.revision = $4
),
given AS MATERIALIZED (
    SELECT u.*, CASE WHEN u.deliver_at IS NULL THEN t.now + u.delay_ms ELSE greatest(t.now, u.deliver_at) END AS visible_at
    FROM q, t, unnest(
        $6::bigint[], $7::bytea[], $8::smallint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
        $13::bigint[], $14::boolean[], $15::text[], $16::bytea[], $17::text[], $18::text[], $19::integer[]
    ) AS u (
        id, payload, priority, delay_ms, deliver_at, ends_after_ms, ttl_ms,
        bytes, is_json, content_type, headers, group_name, correlation_id, max_retries
    )
),
new AS (
    INSERT INTO items (
        queue_key, id, status, priority, deliver_after, created_at, bytes, is_json, expires_at,
        content_type, headers, ttl_ms, group_name, correlation_id, max_retries, payload
    )
    SELECT
        $1, id, CASE WHEN group_name IS NOT NULL THEN 4 WHEN visible_at <= now THEN 0 ELSE 5 END, priority, visible_at,
        now, bytes, is_json, now + ends_after_ms,
        content_type, headers, ttl_ms, group_name, correlation_id, max_retries, payload
    FROM given, t
),
told AS (
    INSERT INTO journal (
        seq, at, queue_key, id, event, priority, attempt, version, created_at, bytes, reason, correlation_id
    )
    SELECT
        (SELECT pg_current_xact_id()::text::bigint << 20) | (row_number() OVER (ORDER BY id) - 1),
        now, $1, id, 0, priority, 0, 0, now, bytes, $5, correlation_id
    FROM given, t
),
counted AS (
    INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
    SELECT
        $1, count(*), count(*) FILTER (WHERE group_name IS NULL AND visible_at > now), 0, 0, 0, coalesce(sum(bytes), 0)
    FROM given, t HAVING count(*) > 0
)
SELECT t.now, q.key, q.is_paused, (SELECT min(visible_at) FROM given) AS visible_at FROM t LEFT JOIN q ON true;

-- name: claim
-- Equals holdfast.stores.logic.claims.claim: see shortcuts.py.
-- $3 the number of messages; $4 the seed of the tokens; $5-$8 the asks: their first and last position, lease and owner;
-- $9 whether nothing is taken while messages of the queue wait to be ended by time. Every row repeats the state of the
-- queue; without a row the queue does not exist. One of the two statements below picks the messages.
WITH t AS MATERIALIZED (SELECT now_ms($2) AS now),
ends AS MATERIALIZED (
    SELECT
        (SELECT min(deliver_after) FROM items WHERE queue_key = $1 AND status = 5) AS delayed_at,
        (SELECT min(lease_expires_at) FROM items WHERE queue_key = $1 AND status = 1) AS leased_at,
        (
            SELECT min(expires_at) FROM items
            WHERE queue_key = $1 AND expires_at IS NOT NULL AND status IN (0, 4, 5)
        ) AS mortal_at,
        -- Due when it was written, but not at this statement's time, because the clock has stepped back.
        (
            SELECT deliver_after FROM items WHERE queue_key = $1 AND status = 0
            ORDER BY priority, deliver_after, id LIMIT 1
        ) AS ready_at
),
q AS MATERIALIZED (
    SELECT
        is_paused, drain_until, has_groups, lease_ms, max_lease_ms,
        coalesce(least(delayed_at, leased_at, mortal_at) <= now, false) AS is_due
    FROM queues, ends, t WHERE key = $1 AND gone_at IS NULL AND moving_to IS NULL
),
picked AS MATERIALIZED (
    {picked}
),
placed AS MATERIALIZED (
    SELECT queue_key, id, row_number() OVER (ORDER BY priority, deliver_after, id) AS place FROM picked
),
taken AS (
    UPDATE items SET
        status = 1, attempt = attempt + 1, version = version + 1, reason = NULL,
        lease_token = substring(sha256($4::bytea || int8send(items.id)) FOR 16), claimed_at = now,
        lease_expires_at = now + least(coalesce(ask.lease_ms, q.lease_ms), q.max_lease_ms),
        lease_ends_at = now + q.max_lease_ms, owner = ask.owner, consumer = NULL, ledger_number = NULL
    FROM placed
    JOIN unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::text[]) AS ask (first, last, lease_ms, owner)
        ON place BETWEEN ask.first AND ask.last
    CROSS JOIN t CROSS JOIN q
    WHERE items.queue_key = placed.queue_key AND items.id = placed.id
    RETURNING
        place, items.id, items.priority, items.attempt, items.version, items.lease_token, items.lease_expires_at,
        items.created_at, items.bytes, items.is_json, items.content_type, items.headers, items.group_name,
        items.correlation_id, items.state, items.payload, items.piece_place, items.piece_size, items.piece_checksum
),
told AS (
    INSERT INTO journal (
        seq, at, queue_key, id, event, priority, attempt, version, created_at, claimed_at, bytes, correlation_id
    )
    SELECT
        (SELECT pg_current_xact_id()::text::bigint << 20) | (place - 1),
        now, $1, id, 1, priority, attempt, version, created_at, now, bytes, correlation_id
    FROM taken, t
),
counted AS (
    INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
    SELECT $1, -count(*), 0, count(*), 0, 0, 0 FROM taken HAVING count(*) > 0
)
SELECT
    t.now, q.is_paused, q.drain_until, q.has_groups, q.is_due, ends.delayed_at, ends.leased_at, ends.ready_at, taken.*
FROM q CROSS JOIN t CROSS JOIN ends LEFT JOIN taken ON true ORDER BY place;

-- name: pick_first
-- Due messages, in order.
SELECT queue_key, id, priority, deliver_after FROM items
    WHERE queue_key = $1 AND status = 0 AND deliver_after <= (SELECT now FROM t)
      AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
      AND (SELECT NOT (is_paused OR has_groups OR (is_due AND $9)) AND drain_until IS NULL FROM q)
    ORDER BY priority, deliver_after, id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: pick_reserved
-- $10-$13 messages as they were when they were reserved; $14-$17 those that other claims have popped before. Takes all
-- of them or none: if one has changed since, or another message that no claim has popped comes before them, the
-- reservation is out of date.
WITH seen AS MATERIALIZED (
        SELECT $1::bigint AS queue_key, u.*
        FROM unnest($10::bigint[], $11::bigint[], $12::smallint[], $13::bigint[]) AS u (id, version, priority, visible_at)
    ),
    mine AS MATERIALIZED (
        SELECT items.queue_key, items.id, items.priority, items.deliver_after
        FROM seen AS r JOIN items ON items.queue_key = r.queue_key AND items.id = r.id
        -- Written so that no index of ready messages matches: the planner would read all of it.
        WHERE items.status IS NOT DISTINCT FROM 0 AND items.version = r.version AND items.priority = r.priority
          AND items.deliver_after = r.visible_at AND items.deliver_after <= (SELECT now FROM t)
          AND (items.expires_at IS NULL OR items.expires_at > (SELECT now FROM t))
          AND (SELECT NOT (is_paused OR has_groups OR (is_due AND $9)) AND drain_until IS NULL FROM q)
        FOR UPDATE OF items SKIP LOCKED
    )
    SELECT * FROM mine
    WHERE (SELECT count(*) FROM mine) = $3 AND NOT EXISTS (
        SELECT 1 FROM items
        WHERE queue_key = $1 AND status = 0 AND deliver_after <= (SELECT now FROM t)
          AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
          AND (priority, deliver_after, id) < ($12[$3], $13[$3], $10[$3])
          AND (id, version, priority, deliver_after) NOT IN (
              SELECT * FROM unnest(
                  $10::bigint[] || $14::bigint[], $11::bigint[] || $15::bigint[],
                  $12::smallint[] || $16::smallint[], $13::bigint[] || $17::bigint[]
              )
          )
    );

-- name: reserve
-- Up to $3 messages after the position $4-$6, as a claim would take them. Nothing is written or locked.
SELECT id, version, priority, deliver_after FROM items
WHERE queue_key = $1 AND status = 0 AND deliver_after <= (SELECT now_ms($2))
  AND (expires_at IS NULL OR expires_at > (SELECT now_ms($2)))
  AND (priority, deliver_after, id) > ($4::smallint, $5::bigint, $6::bigint)
  AND (
      SELECT NOT is_paused AND NOT has_groups AND drain_until IS NULL AND moving_to IS NULL
      FROM queues WHERE key = $1 AND gone_at IS NULL
  )
ORDER BY priority, deliver_after, id LIMIT $3;

-- name: ack
-- Equals holdfast.stores.logic.verdicts.settle for acks: see shortcuts.py.
-- $3-$5 the receipts. Acks of messages in groups, and of queues that keep succeeded messages, are left out here.
WITH t AS MATERIALIZED (SELECT now_ms($2) AS now),
q AS MATERIALIZED (
    SELECT drain_until FROM queues WHERE key = $1 AND gone_at IS NULL AND moving_to IS NULL AND NOT keeps
),
given AS MATERIALIZED (
    SELECT $1::bigint AS queue_key, u.*
    FROM unnest($3::bigint[], $4::bytea[], $5::bigint[]) WITH ORDINALITY AS u (id, token, version, place)
),
gone AS (
    DELETE FROM items USING given, t, q
    -- Only messages in flight have a token.
    WHERE items.queue_key = given.queue_key AND items.id = given.id AND items.version = given.version
      AND items.lease_token = given.token AND items.lease_expires_at > t.now
      AND items.group_name IS NULL AND items.piece_place IS NULL
    RETURNING
        place, items.id, items.priority, items.attempt, items.version, items.created_at, items.claimed_at, items.bytes,
        items.correlation_id
),
told AS (
    INSERT INTO journal (
        seq, at, queue_key, id, event, priority, attempt, version, created_at, claimed_at, bytes, correlation_id
    )
    SELECT
        (SELECT pg_current_xact_id()::text::bigint << 20) | (place - 1),
        now, $1, id, 2, priority, attempt, version, created_at, claimed_at, bytes, correlation_id
    FROM gone, t
),
counted AS (
    INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
    SELECT $1, 0, 0, -count(*), 0, 0, -sum(bytes) FROM gone HAVING count(*) > 0
)
SELECT t.now, q.drain_until, gone.id, gone.correlation_id FROM t LEFT JOIN q ON true LEFT JOIN gone ON true;

-- name: change
-- Every field of a message's life. $2 is not a time here but the ids.
WITH given AS MATERIALIZED (
    SELECT $1::bigint AS queue_key, u.*
    FROM unnest(
        $2::bigint[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::integer[], $8::integer[],
        $9::integer[], $10::integer[], $11::bigint[], $12::bytea[], $13::bigint[], $14::bigint[], $15::bigint[],
        $16::text[], $17::text[], $18::bigint[], $19::bytea[], $20::text[], $21::bigint[], $22::bigint[]
    ) AS u (
        id, status, priority, deliver_after, expires_at, attempt, failures, expiries, releases, version, lease_token,
        claimed_at, lease_expires_at, lease_ends_at, owner, consumer, ledger_number, error, reason, settled_at,
        keep_until
    )
)
UPDATE items SET
    status = u.status, priority = u.priority, deliver_after = u.deliver_after, expires_at = u.expires_at,
    attempt = u.attempt, failures = u.failures, expiries = u.expiries, releases = u.releases, version = u.version,
    lease_token = u.lease_token, claimed_at = u.claimed_at, lease_expires_at = u.lease_expires_at,
    lease_ends_at = u.lease_ends_at, owner = u.owner, consumer = u.consumer, ledger_number = u.ledger_number,
    error = u.error, reason = u.reason, settled_at = u.settled_at, keep_until = u.keep_until
FROM given AS u WHERE items.queue_key = u.queue_key AND items.id = u.id;

-- name: delete
-- Abandons payloads in pieces, which sweeps delete.
WITH gone AS (DELETE FROM items WHERE queue_key = $1 AND id = ANY($2::bigint[]) RETURNING piece_place)
INSERT INTO stages (place, is_abandoned) SELECT piece_place, true FROM gone WHERE piece_place IS NOT NULL;

-- name: show_heads
-- Equals group_head and replace_head of holdfast.model.claims.
-- $3 names of groups. The oldest message of each group becomes claimable unless a message of the group is in flight;
-- all others wait behind it.
WITH t AS MATERIALIZED (SELECT now_ms($2) AS now),
heads AS MATERIALIZED (
    SELECT
        $1::bigint AS key, name,
        (SELECT true FROM items WHERE queue_key = $1 AND group_name = name AND status = 1 LIMIT 1) AS is_busy,
        (
            SELECT id FROM items WHERE queue_key = $1 AND group_name = name AND status IN (0, 4, 5)
            ORDER BY id LIMIT 1
        ) AS head
    FROM unnest($3::text[]) AS name
),
shown AS MATERIALIZED (
    SELECT items.id, status, deliver_after, head, is_busy FROM heads
    JOIN items ON queue_key = heads.key AND group_name = name AND status IN (0, 5)
    UNION
    SELECT items.id, status, deliver_after, head, is_busy FROM heads
    JOIN items ON queue_key = heads.key AND items.id = head
),
wanted AS MATERIALIZED (
    SELECT
        $1::bigint AS queue_key, id, status AS was,
        CASE WHEN is_busy OR id <> head THEN 4 WHEN deliver_after <= now THEN 0 ELSE 5 END AS becomes
    FROM shown, t
),
changed AS (
    UPDATE items SET status = becomes FROM wanted
    WHERE items.queue_key = wanted.queue_key AND items.id = wanted.id AND was <> becomes
    RETURNING (becomes = 5)::integer - (was = 5)::integer AS delayed
)
INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
SELECT $1, 0, sum(delayed), 0, 0, 0, 0 FROM changed HAVING sum(delayed) <> 0;

-- name: promote
-- Makes up to $3 delayed messages claimable that have become due.
WITH t AS MATERIALIZED (SELECT now_ms($2) AS now),
due AS MATERIALIZED (
    SELECT queue_key, id FROM items WHERE queue_key = $1 AND status = 5 AND deliver_after <= (SELECT now FROM t)
    ORDER BY deliver_after LIMIT $3 FOR UPDATE
),
shown AS (
    UPDATE items SET status = 0 FROM due
    WHERE items.queue_key = due.queue_key AND items.id = due.id RETURNING 1
)
INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
SELECT $1, 0, -count(*), 0, 0, 0, 0 FROM shown HAVING count(*) > 0 RETURNING -delayed AS changed;

-- name: record
-- Events, the first with number $1 within this transaction, and count lines.
WITH told AS (
    INSERT INTO journal (
        seq, at, queue_key, id, event, priority, attempt, version, created_at, claimed_at, bytes, error, reason,
        correlation_id
    )
    SELECT
        (SELECT pg_current_xact_id()::text::bigint << 20) | ($1 + place - 1),
        at, queue_key, id, event, priority, attempt, version, created_at, claimed_at, bytes, error, reason,
        correlation_id
    FROM unnest(
        $2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::smallint[], $7::integer[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[], $13::text[], $14::text[]
    ) WITH ORDINALITY AS u (
        at, queue_key, id, event, priority, attempt, version, created_at, claimed_at, bytes, error, reason,
        correlation_id, place
    )
)
INSERT INTO count_lines (queue_key, waiting, delayed, in_flight, failed, kept, bytes)
SELECT * FROM unnest(
    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[]
);
