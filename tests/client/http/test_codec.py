"""Requests as the client writes them."""

import pytest

from holdfast.client.http.calls import HttpCalls
from holdfast.client.http.codec import HttpCodec
from holdfast.client.remote.settings import parse_settings
from holdfast.model.message import BYTES, JSON, Draft
from holdfast.model.names import QueueRef
from holdfast.wire.http.bodies import EnqueueRequest, encode
from holdfast.wire.http.drafts import message_in

PLAIN = Draft(payload=b'{"a":[1,null]}', content_type=JSON)


@pytest.mark.parametrize(
    "draft",
    [
        PLAIN,
        Draft(payload=b"{}", content_type=JSON, key="k"),
        Draft(payload=b"{}", content_type=JSON, priority=0),
        Draft(payload=b"{}", content_type=JSON, delay_ms=1, headers={"a": "b"}),
        Draft(payload=b"{}", content_type="text/plain", is_json=True),
        Draft(payload=b"\x00\xff", content_type=BYTES),
    ],
)
def test_a_message_alone_is_the_document_that_it_would_be_in_a_batch(draft: Draft) -> None:
    codec = HttpCodec(HttpCalls(parse_settings("http://localhost:1", {}), in_threads=True))
    for queue in ("mail", "mail", 'of "all"'):
        request = codec.enqueue(QueueRef("acmé", queue), [draft], is_shared=False)
        whole = EnqueueRequest(tenant="acmé", queue=queue, messages=[message_in(draft)])
        assert request.body == [encode(whole)]
        assert request.is_repeatable == (draft.key is not None)
