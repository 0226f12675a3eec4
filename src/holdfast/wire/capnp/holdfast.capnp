@0xd1c7f0a3e5b94826;
# Holdfast over Cap'n Proto RPC, version 1.
#
# The bootstrap capability of a connection is `Queues`. New fields are only added at the end of a struct: a client may
# omit fields, and ignores fields that it does not know. An omitted field (a null pointer, an empty text, or 0 where a
# comment says so) has its default value. Instants are milliseconds since 1970 (UTC), durations are milliseconds.
#
# Each result has an `error`. If it is null, the call was carried out. Calls fail in no other way, except when the
# connection is lost.

const version :UInt16 = 1;

# Wait without a limit, until the caller leaves.
const forEver :UInt32 = 0xffffffff;

interface Queues {
  add @0 Add -> Added;
  poll @1 Poll -> Polled;
  ack @2 Ack -> Settled;
  extend @3 Extend -> Settled;
  remove @4 Remove -> Settled;
  nack @5 Nack -> Settled;
  release @6 Release -> Settled;

  # Carries out several verdicts. Each has its own result.
  settle @7 Settle -> Settled;

  # Sets the token of all following calls on this connection. Required if the server needs a token.
  authenticate @8 (token :Text) -> (error :Error);

  # Returns the protocol version and the name of the server.
  hello @9 () -> (version :UInt16, server :Text);

  # Ends the waiting poll with this ticket. The poll returns at once, with the messages that it has.
  leave @10 (ticket :UInt64) -> ();

  createQueue @11 CreateQueue -> (error :Error);
  deleteQueue @12 DeleteQueue -> (error :Error);
  listQueues @13 (tenant :Text) -> (queues :List(QueueStats), error :Error);
  stats @14 (ref :QueueRef) -> (stats :QueueStats, error :Error);

  # Returns part of a payload that a poll with `streams` omitted.
  readPart @15 ReadPart -> (data :Data, total :UInt64, correlationId :Text, error :Error);

  # Enqueues a message whose payload is sent in parts.
  upload @16 Upload -> (sink :Sink, error :Error);

  # Carries out any other operation by name. Its arguments and its result (`answer`) are JSON documents.
  operate @17 Operate -> (answer :Data, error :Error);
}

interface Sink {
  write @0 (part :Data) -> (error :Error);
  finish @1 () -> Added;
  abandon @2 () -> ();
}

# The default is the queue `default` of the caller's own tenant. Each field may be omitted separately.
struct QueueRef {
  tenant @0 :Text;
  queue @1 :Text;
}

struct Error {
  # For example invalid_argument, stale_lease or rate_limited.
  code @0 :Text;
  message @1 :Text;
  # Further facts as a JSON document, for example {"field": "limit"}.
  facts @2 :Data;
  # The time to wait before a retry. 0: a retry would not help.
  retryAfterMs @3 :UInt64;
}

struct Header {
  name @0 :Text;
  value @1 :Text;
}

# The correlation id and the trace of a call.
struct Context {
  # Used for messages that have none of their own.
  correlationId @0 :Text;
  traceparent @1 :Text;
  tracestate @2 :Text;
}

# --- Messages in ---------------------------------------------------------------------------------------------------

struct Add {
  ref @0 :QueueRef;
  # The payloads. Either all are enqueued or none.
  items @1 :List(Data);
  # No element, one for all items, or one for each item.
  options @2 :List(Options);
  context @3 :Context;
}

enum Form {
  # Decided by the content type.
  typed @0;
  json @1;
  bytes @2;
}

struct Options {
  priority @0 :UInt8 = 100;
  delayMs @1 :UInt64;
  # -1: not given.
  deliverAt @2 :Int64 = -1;
  # 0: the TTL of the queue.
  ttlMs @3 :UInt64;
  # -1: the maximum of the queue.
  maxRetries @4 :Int32 = -1;
  # Idempotency key: of several messages with the same key only the first is enqueued.
  key @5 :Text;
  group @6 :Text;
  contentType @7 :Text;
  correlationId @8 :Text;
  headers @9 :List(Header);
  form @10 :Form;
}

struct Added {
  # In the order of the items: ids of 16 bytes, and the same ids as numbers.
  ids @0 :List(Data);
  snowflakes @1 :List(UInt64);
  # Empty if no item was a duplicate.
  duplicates @2 :List(Bool);
  # Empty if the correlation id of each message is its id.
  correlationIds @3 :List(Text);
  error @4 :Error;
}

struct Upload {
  ref @0 :QueueRef;
  options @1 :Options;
  context @2 :Context;
}

# --- Messages out --------------------------------------------------------------------------------------------------

struct Poll {
  ref @0 :QueueRef;
  # The maximum number of messages. 0 means 1.
  numItems @1 :UInt16;
  # 0: do not wait. `forEver`: wait until the caller leaves.
  waitMs @2 :UInt32;
  # 0: the lease of the queue.
  leaseMs @3 :UInt64;
  owner @4 :Text;
  withState @5 :Bool;
  # Omit large payloads, to be read by `readPart`.
  streams @6 :Bool;
  # A number chosen by the caller, for `leave`. 0: none.
  ticket @7 :UInt64;
  # A ledger claim: the consumer and the number under which the claim is kept.
  consumer @8 :Text;
  number @9 :Int64 = -1;
  # Verdicts on earlier deliveries. A poll with verdicts does not wait.
  verdicts @10 :List(Verdict);
  context @11 :Context;
}

struct Polled {
  messages @0 :List(Message);
  # The results of the verdicts, in the same order.
  results @1 :List(Result);
  error @2 :Error;
}

struct Message {
  id @0 :Data;
  contents @1 :Data;
  # The proof of the lease.
  receipt @2 :Text;
  snowflake @3 :UInt64;
  attempt @4 :UInt32;
  # Increases with each claim of the message.
  version @5 :UInt64;
  priority @6 :UInt8;
  enqueuedAt @7 :UInt64;
  leaseExpiresAt @8 :UInt64;
  contentType @9 :Text;
  correlationId @10 :Text;
  group @11 :Text;
  headers @12 :List(Header);
  isJson @13 :Bool;
  # With `withState`: a JSON document {document, etag, progress}.
  state @14 :Data;
  # With `streams`, for a large payload: `contents` is empty, and these are the length and the CRC-32 of the payload.
  payloadBytes @15 :UInt64;
  payloadCrc32 @16 :UInt32;
  isApart @17 :Bool;
}

struct ReadPart {
  ref @0 :QueueRef;
  receipt @1 :Text;
  offset @2 :UInt64;
  limit @3 :UInt32;
}

# --- Verdicts ------------------------------------------------------------------------------------------------------
# A message is named by its receipt, or by messageId alone (16 bytes) if the caller has the identity that claimed it.

struct Ack {
  ref @0 :QueueRef;
  messageId @1 :Data;
  receipt @2 :Text;
}

struct Extend {
  ref @0 :QueueRef;
  messageId @1 :Data;
  # The new lease, counted from now. 0: the lease of the queue.
  extendMs @2 :UInt32;
  receipt @3 :Text;
}

struct Remove {
  ref @0 :QueueRef;
  messageId @1 :Data;
  receipt @2 :Text;
}

struct Nack {
  ref @0 :QueueRef;
  messageId @1 :Data;
  receipt @2 :Text;
  error @3 :Text;
  # The delay before the retry. -1: the backoff of the queue.
  delayMs @4 :Int64 = -1;
  # Do not count this as a failure.
  defer @5 :Bool;
  # Do not retry: move the message to the dead letters.
  final @6 :Bool;
}

struct Release {
  ref @0 :QueueRef;
  messageId @1 :Data;
  receipt @2 :Text;
}

enum Kind {
  ack @0;
  nack @1;
  release @2;
  extend @3;
  remove @4;
  # Returns a delivery that its caller never received, as if it had not been claimed.
  unsend @5;
}

struct Verdict {
  kind @0 :Kind;
  receipt @1 :Text;
  messageId @2 :Data;
  error @3 :Text;
  delayMs @4 :Int64 = -1;
  defer @5 :Bool;
  final @6 :Bool;
  leaseMs @7 :UInt64;
  # With `final`: the caller has used up its own retries, so the reason of the dead letter is `retries`.
  exhausted @8 :Bool;
}

struct Settle {
  ref @0 :QueueRef;
  verdicts @1 :List(Verdict);
  context @2 :Context;
}

struct Result {
  id @0 :Data;
  snowflake @1 :UInt64;
  ok @2 :Bool;
  # Empty if the message no longer exists.
  correlationId @3 :Text;
  # An error code; empty on success.
  error @4 :Text;
  # The new state: ready, in_flight, succeeded or failed.
  state @5 :Text;
  retryAt @6 :Int64 = -1;
  leaseExpiresAt @7 :Int64 = -1;
}

struct Settled {
  results @0 :List(Result);
  error @1 :Error;
}

# --- Queues --------------------------------------------------------------------------------------------------------

struct CreateQueue {
  ref @0 :QueueRef;
  # The policy fields to set, as a JSON object. Other fields keep their values, or their defaults in a new queue.
  policy @1 :Data;
}

struct DeleteQueue {
  ref @0 :QueueRef;
  # How long messages in flight may still be settled. -1: 30 s.
  forceAfterMs @1 :Int64 = -1;
}

struct QueueStats {
  queue @0 :Text;
  ready @1 :UInt64;
  delayed @2 :UInt64;
  inFlight @3 :UInt64;
  failed @4 :UInt64;
  bytes @5 :UInt64;
  oldestReadyAgeMs @6 :UInt64;
  waiters @7 :UInt64;
  paused @8 :Bool;
  draining @9 :Bool;
}

struct Operate {
  ref @0 :QueueRef;
  operation @1 :Text;
  arguments @2 :Data;
}
