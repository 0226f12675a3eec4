"""Dead letters: look at what failed and why, bring back what can succeed now, mend a payload, remove the rest."""

import holdfast

with holdfast.open("memory://") as hf:
    mail = hf.queue("mail")
    mail.set_policy(max_retries=0)  # one attempt each: this is about what comes after the last one
    mail.enqueue([{"to": "ada@example.org"}, {"to": "grace.example.org"}, {"to": "nobody@example.org"}])

    errors = ("timeout: smtp.example.org", "invalid address", "mailbox does not exist")
    for message, error in zip(mail.claim(limit=3), errors, strict=True):
        message.nack(error)

    for letter in mail.list(state="failed"):
        print(f"{letter.reason} after {letter.attempt} attempt: {letter.last_error}")

    # The other side is back: everything that failed for its sake, with a fresh retry budget.
    timeouts = {"error_contains": "timeout"}
    print("would bring back", mail.redrive(timeouts, dry_run=True).matched)
    print("brought back", mail.redrive(timeouts).redriven)

    # One with a typing error: the payload is changed on the way back.
    [typo] = mail.list(state="failed", filter={"error_contains": "invalid address"})
    mail.redrive({"ids": [typo.id]}, edit={"id": typo.id, "payload": {"to": "grace@example.org"}})

    print("removed", mail.purge(state="failed").changed)
    for message in mail.claim(limit=10):
        with message:
            print(f"sent to {message.json()['to']}, attempt {message.attempt}")
