#!/bin/sh
# A worker without Python: `holdfast run` starts a program for each message.
#
# The payload is the program's standard input, and the file {}. Exit code 0 acks the message, 75 means later, any other
# code nacks it with the last lines of stderr as the error. The lease is renewed meanwhile.
#
# Needs a server: holdfast serve --data ./data. HOLDFAST_URL names another one.
set -eu

holdfast enqueue thumbnails '{"file": "cat.png"}'
holdfast enqueue thumbnails '{"file": "dog.png"}' --priority 10

holdfast run thumbnails --concurrency 2 -- sh -c 'echo "resizing $(cat), message $HOLDFAST_QUEUE_MESSAGE_ID"' &
worker=$!

# This worker goes on for ever; here it is told to stop once the queue is empty. It finishes what it holds first.
until holdfast stats thumbnails --json | grep -q '"ready":0,"delayed":0,"in_flight":0'; do sleep 0.2; done
kill -TERM "$worker"
wait "$worker"

# The same by hand, one message at a time.
holdfast enqueue thumbnails '{"file": "owl.png"}'
eval "$(holdfast dequeue thumbnails --block 5s)"
echo "by hand: $(cat "$HOLDFAST_QUEUE_PAYLOAD_PATH")"
holdfast ack
