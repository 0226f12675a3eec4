"""Identify callers by bearer token or by client certificate; without a configured identity, accept anyone.

Decides who the caller is, not what it may do. Imports the libraries for tokens and certificates only if configured.
Start with `compose.py`.
"""

from holdfast.doors.identity.caller_sessions import CallerSessions
from holdfast.doors.identity.certificates import CertificateIdentity, PeerCertificate, peer_of
from holdfast.doors.identity.claims import AUTHORIZATION
from holdfast.doors.identity.compose import Identity, Open, TokenOrCertificate, make_identity
from holdfast.doors.identity.scraping import ScraperIdentity

__all__ = [
    "AUTHORIZATION",
    "CallerSessions",
    "CertificateIdentity",
    "Identity",
    "Open",
    "PeerCertificate",
    "ScraperIdentity",
    "TokenOrCertificate",
    "make_identity",
    "peer_of",
]
