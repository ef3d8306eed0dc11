"""Serves HTTP: listener, TLS, authentication, middleware, timeouts, logs, metrics, tracing."""
