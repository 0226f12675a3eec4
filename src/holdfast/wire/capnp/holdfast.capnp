@0xd1c7f0a3e5b94826;
# Holdfast over Cap'n Proto RPC, version 1.
#
# The bootstrap capability of a connection is `Queues`. Fields are only ever added, at the end: a client may leave out
# what it does not know, and ignores what it has not heard of. What is left out (no pointer, an empty text, 0 where 0
# says so) has its usual value. Instants are milliseconds since 1970, durations are milliseconds.
#
# Each answer has an `error`; where there is none, the call was carried out. No call fails in any other way, but for a
# connection that is lost.

const version :UInt16 = 1;

# Wait until the caller leaves.
const forEver :UInt32 = 0xffffffff;

interface Queues {
  add @0 Add -> Added;
  poll @1 Poll -> Polled;
  ack @2 Ack -> Settled;
  extend @3 Extend -> Settled;
  remove @4 Remove -> Settled;
  nack @5 Nack -> Settled;
  release @6 Release -> Settled;

  # Several verdicts at once, each answered by a result of its own.
  settle @7 Settle -> Settled;

  # Who is calling, from now on and on this connection. Needed where the server asks for tokens.
  authenticate @8 (token :Text) -> (error :Error);

  # What this server speaks.
  hello @9 () -> (version :UInt16, server :Text);

  # Of a poll that waits, by its ticket: it is answered at once, with what it has.
  leave @10 (ticket :UInt64) -> ();

  createQueue @11 CreateQueue -> (error :Error);
  deleteQueue @12 DeleteQueue -> (error :Error);
  listQueues @13 (tenant :Text) -> (queues :List(QueueStats), error :Error);
  stats @14 (ref :QueueRef) -> (stats :QueueStats, error :Error);

  # Part of a payload that a poll with `streams` left where it is.
  readPart @15 ReadPart -> (data :Data, total :UInt64, correlationId :Text, error :Error);

  # A message whose payload comes bit by bit.
  upload @16 Upload -> (sink :Sink, error :Error);

  # Everything else an operator may do, by name; arguments and answer are JSON documents.
  operate @17 Operate -> (answer :Data, error :Error);
}

interface Sink {
  write @0 (part :Data) -> (error :Error);
  finish @1 () -> Added;
  abandon @2 () -> ();
}

# Left out: the queue `default` of the caller's own tenant. Each half may be left out by itself.
struct QueueRef {
  tenant @0 :Text;
  queue @1 :Text;
}

struct Error {
  # invalid_argument, stale_lease, rate_limited, ...
  code @0 :Text;
  message @1 :Text;
  # What there is to say besides, a JSON document: {"field": "limit"}
  facts @2 :Data;
  # 0: asking again would not help.
  retryAfterMs @3 :UInt64;
}

struct Header {
  name @0 :Text;
  value @1 :Text;
}

# Of the call, not of a message.
struct Context {
  # For messages that have none of their own.
  correlationId @0 :Text;
  traceparent @1 :Text;
  tracestate @2 :Text;
}

# --- Messages in ---------------------------------------------------------------------------------------------------

struct Add {
  ref @0 :QueueRef;
  # The payloads. All are taken, or none.
  items @1 :List(Data);
  # None; one for all items; or one for each.
  options @2 :List(Options);
  context @3 :Context;
}

enum Form {
  # As the content type says.
  typed @0;
  json @1;
  bytes @2;
}

struct Options {
  priority @0 :UInt8 = 100;
  delayMs @1 :UInt64;
  # -1: not given.
  deliverAt @2 :Int64 = -1;
  # 0: the queue's.
  ttlMs @3 :UInt64;
  # -1: the queue's.
  maxRetries @4 :Int32 = -1;
  # Of two messages with the same key only the first is taken.
  key @5 :Text;
  group @6 :Text;
  contentType @7 :Text;
  correlationId @8 :Text;
  headers @9 :List(Header);
  form @10 :Form;
}

struct Added {
  # In the order of the items: 16 bytes each, and the same as numbers.
  ids @0 :List(Data);
  snowflakes @1 :List(UInt64);
  # Empty: no item was a duplicate.
  duplicates @2 :List(Bool);
  # Empty: each message's is its id.
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
  # 0: one.
  numItems @1 :UInt16;
  # 0: do not wait; `forEver`: until the caller leaves.
  waitMs @2 :UInt32;
  # 0: the queue's.
  leaseMs @3 :UInt64;
  owner @4 :Text;
  withState @5 :Bool;
  # Large payloads stay where they are: `readPart`.
  streams @6 :Bool;
  # A number of the caller's own, for `leave`.
  ticket @7 :UInt64;
  # A claim that is kept under a number.
  consumer @8 :Text;
  number @9 :Int64 = -1;
  # Of earlier deliveries; with any, the poll does not wait.
  verdicts @10 :List(Verdict);
  context @11 :Context;
}

struct Polled {
  messages @0 :List(Message);
  # Of the verdicts, in their order.
  results @1 :List(Result);
  error @2 :Error;
}

struct Message {
  id @0 :Data;
  contents @1 :Data;
  # Proves the lease.
  receipt @2 :Text;
  snowflake @3 :UInt64;
  attempt @4 :UInt32;
  # Rises with each claim of the message.
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
  # With `streams`: the payload is elsewhere, and `contents` empty.
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
# By receipt. By messageId alone (16 bytes), for whoever claimed it under the same name.

struct Ack {
  ref @0 :QueueRef;
  messageId @1 :Data;
  receipt @2 :Text;
}

struct Extend {
  ref @0 :QueueRef;
  messageId @1 :Data;
  # From now. 0: the queue's.
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
  # -1: as the queue's retries have it.
  delayMs @4 :Int64 = -1;
  # Does not use up a retry.
  defer @5 :Bool;
  # No more retries.
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
  # Of a delivery that its caller never saw: as if it had not been claimed.
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
  # With final: the caller's own retries are used up, so the dead letter's reason is `retries`.
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
  # Left out: the message is gone, and this with it.
  correlationId @3 :Text;
  # A code.
  error @4 :Text;
  # ready, in_flight, succeeded, failed
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
  # The fields of its policy that are not as usual, a JSON document. Of a queue that exists they are changed.
  policy @1 :Data;
}

struct DeleteQueue {
  ref @0 :QueueRef;
  # What is in flight may be settled for so long. -1: 30 s.
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
