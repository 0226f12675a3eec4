"""Who is calling: by bearer token, by client certificate, or, where nothing is configured, anyone.

The libraries for tokens and certificates are imported once a server is configured to ask for them.
"""

from holdfast.doors.identity.certificates import CertificateIdentity, PeerCertificate, peer_of
from holdfast.doors.identity.claims import AUTHORIZATION
from holdfast.doors.identity.compose import Identity, Open, TokenOrCertificate, make_identity
from holdfast.doors.identity.scraping import ScraperIdentity

__all__ = [
    "AUTHORIZATION",
    "CertificateIdentity",
    "Identity",
    "Open",
    "PeerCertificate",
    "ScraperIdentity",
    "TokenOrCertificate",
    "make_identity",
    "peer_of",
]
