"""Where spans go, as OpenTelemetry's own variables say. The SDK is an extra, imported only when it is asked for."""

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from holdfast.model.extras import install_command
from holdfast.telemetry.trace import Tracing, global_provider

_log = logging.getLogger("holdfast")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_EXPORTER = "OTEL_TRACES_EXPORTER"


def tracing_from(environment: Mapping[str, str], *, version: str = "unknown") -> Tracing:
    """Tracing as it is asked for: `OTEL_TRACES_EXPORTER` (otlp, console, none) or an endpoint turns it on. Never a
    reason not to start: what is missing is said in the log."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Tracing()
    if (provider := global_provider()) is not None:
        return Tracing(provider)
    asked_by = next((name for name in (_EXPORTER, *_ENDPOINTS) if environment.get(name)), None)
    exporter = environment.get(_EXPORTER) or "otlp"
    if asked_by is None or exporter == "none":
        return Tracing()
    if exporter not in ("otlp", "console"):
        _log.warning("no traces: %s is neither otlp nor console nor none", _EXPORTER)
        return Tracing()
    missing = [name for name in _modules(exporter) if not _is_installed(name)]
    if missing:
        _log.warning(
            "no traces: %s asks for them, but %s is not installed: %s", asked_by, missing[0], install_command("otel")
        )
        return Tracing()
    return _make(exporter, environment, version)


def _modules(exporter: str) -> list[str]:
    return ["opentelemetry.sdk.trace", *(["opentelemetry.exporter.otlp.proto.http"] if exporter == "otlp" else [])]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # of a package that is itself inside a missing one


def _make(exporter: str, environment: Mapping[str, str], version: str) -> Tracing:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    sink: SpanExporter
    if exporter == "console":
        sink = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        sink = OTLPSpanExporter()
    named = environment.get("OTEL_SERVICE_NAME") or "holdfast"
    resource = Resource.create({"service.name": named, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(sink))
    _log.info("traces go to %s", "the console" if exporter == "console" else "the OTLP endpoint")
    return Tracing(provider, provider.shutdown)
