"""Who is calling: by bearer token, by client certificate, or, where nothing is configured, anyone."""

from holdfast.doors.identity.certificates import CertificateIdentity, PeerCertificate, peer_of
from holdfast.doors.identity.compose import Identity, Open, TokenOrCertificate, make_identity
from holdfast.doors.identity.scraping import ScraperIdentity
from holdfast.doors.identity.tokens import TokenIdentity

__all__ = [
    "CertificateIdentity",
    "Identity",
    "Open",
    "PeerCertificate",
    "ScraperIdentity",
    "TokenIdentity",
    "TokenOrCertificate",
    "make_identity",
    "peer_of",
]
