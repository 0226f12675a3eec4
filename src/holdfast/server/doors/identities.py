"""The HTTP door of a server and its identities, made from the settings."""

from holdfast.clock import Clock
from holdfast.doors.http.app import HttpDoor
from holdfast.doors.http.health import FramedOffer, Health
from holdfast.doors.http.hosts import ANY_HOST, Hosts
from holdfast.doors.http.request_bodies import limits_for
from holdfast.doors.http.routes import make_fallback
from holdfast.doors.identity import Identity, ScraperIdentity, make_identity
from holdfast.server.doors.backend import Backend, DoorTelemetry
from holdfast.server.settings import Settings
from holdfast.service.drain import Drain


def identity_of(settings: Settings, clock: Clock) -> Identity:
    """Return the identity of a server with these settings. Raise `InvalidArgument` for unusable ones."""
    return make_identity(
        clock=clock,
        jwt_secret=None if settings.jwt_secret is None else settings.jwt_secret.reveal(),
        jwt_keys=settings.jwt_keys,
        jwt_issuer=settings.jwt_issuer,
        jwt_audience=settings.jwt_audience,
        mtls_tenants=settings.mtls_tenants,
    )


def scrapers_of(settings: Settings, identity: Identity) -> ScraperIdentity:
    """Return the identity for callers of the metrics; None if it is that of all other calls."""
    token = settings.metrics_token
    return ScraperIdentity(identity, token=None if token is None else token.reveal(), is_public=settings.metrics_public)


def hosts_of(settings: Settings) -> Hosts | None:
    """Return the host names that callers may use; None for any.

    Authenticated callers gain nothing by using another name. With identities the names are therefore checked only if
    they are configured.
    """
    if settings.allowed_hosts is None:
        return None if settings.has_identities else Hosts([settings.host])
    return None if ANY_HOST in settings.allowed_hosts else Hosts([settings.host, *settings.allowed_hosts])


def make_door(
    backend: Backend,
    identity: Identity,
    drain: Drain,
    telemetry: DoorTelemetry,
    settings: Settings,
    framed: FramedOffer | None = None,
) -> HttpDoor:
    """Return the HTTP door of a server with these settings."""
    health = Health(
        drain=drain,
        check_store=backend.check_store,
        render=telemetry.metrics.render,
        scrapers=scrapers_of(settings, identity),
        framed=framed,
    )
    return HttpDoor(
        identity=identity,
        hosts=hosts_of(settings),
        open_session=backend.open_session,
        limits=limits_for(settings.max_payload),
        observer=telemetry.metrics,
        tracing=telemetry.tracing,
        drain=drain,
        fallback=make_fallback(health),
    )
