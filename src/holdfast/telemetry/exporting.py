"""The export of traces, configured by the standard variables of OpenTelemetry.

The SDK belongs to an extra, so it is imported only when traces are exported.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from holdfast.model.extras import install_command
from holdfast.telemetry.trace import Tracing, global_provider

_log = logging.getLogger("holdfast")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_EXPORTER = "OTEL_TRACES_EXPORTER"


def tracing_from(environment: Mapping[str, str], *, version: str = "unknown") -> Tracing:
    """Return the tracing that the environment asks for.

    `OTEL_TRACES_EXPORTER` (otlp, console or none) or an OTLP endpoint turns it on. A missing package or a wrong value
    never stops the server from starting: a warning is logged, and there are no traces.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Tracing()
    if (provider := global_provider()) is not None:
        return Tracing(provider)
    asked_by = next((name for name in (_EXPORTER, *_ENDPOINTS) if environment.get(name)), None)
    exporter = environment.get(_EXPORTER) or "otlp"
    if asked_by is None or exporter == "none":
        return Tracing()
    if exporter not in ("otlp", "console"):
        _log.warning("traces_off variable=%s: it must be otlp, console or none", _EXPORTER)
        return Tracing()
    missing = [name for name in _modules(exporter) if not _is_installed(name)]
    if missing:
        _log.warning(
            "traces_off variable=%s missing=%s: install it with %s",
            asked_by,
            missing[0],
            install_command("otel"),
        )
        return Tracing()
    return _make(exporter, environment, version)


def _modules(exporter: str) -> list[str]:
    return ["opentelemetry.sdk.trace", *(["opentelemetry.exporter.otlp.proto.http"] if exporter == "otlp" else [])]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False  # the package that contains it is missing


def _make(exporter: str, environment: Mapping[str, str], version: str) -> Tracing:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    span_exporter: SpanExporter
    if exporter == "console":
        span_exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        span_exporter = OTLPSpanExporter()
    service_name = environment.get("OTEL_SERVICE_NAME") or "holdfast"
    resource = Resource.create({"service.name": service_name, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(span_exporter))
    _log.info("traces_on exporter=%s", exporter)
    return Tracing(provider, provider.shutdown)
