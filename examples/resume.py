"""Long work that continues where it stopped: a state document is saved with the message, and survives its failures.

Saving asks for the receipt of the current lease and the document's ETag: a worker that lost its lease cannot overwrite
what its successor saved.
"""

import holdfast

CHUNKS = 5


def convert(message: holdfast.BlockingMessage) -> None:
    done = (message.state or {"chunks": 0})["chunks"]
    print(f"attempt {message.attempt} begins at chunk {done}")
    for chunk in range(done, CHUNKS):
        if chunk == 3 and message.attempt == 1:
            raise RuntimeError("out of memory")
        message.save_state({"chunks": chunk + 1})
        message.progress(100 * (chunk + 1) / CHUNKS, f"chunk {chunk + 1} of {CHUNKS}")
        message.extend("30s")


with holdfast.open("memory://") as hf:
    videos = hf.queue("videos")
    [id] = videos.enqueue({"file": "talk.mkv"})
    while True:
        [message] = videos.claim(wait=10, lease="30s", state=True)
        try:
            with message:
                convert(message)
            break
        except RuntimeError as error:
            seen = videos.get(id).progress
            print(f"failed with {error!r} at {seen.percent:.0f} % ({seen.text})" if seen else error)
    print(f"converted on attempt {message.attempt}")
