"""The files that HTTPS needs, looked at before anything is loaded."""

import ssl
from dataclasses import dataclass

from server.settings.schema import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM file with the certificate and its chain; the key may lie in the same file."""

    file: str
    keyfile: str | None


def certificate_of(settings: Settings) -> Certificate | None:
    """None for plain HTTP. Raises SettingsError for files that cannot be used together."""
    file, keyfile = settings.server.ssl_certfile, settings.server.ssl_keyfile
    if file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without the callback a key with a password would ask for it on the terminal.
        context.load_cert_chain(file, keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"server.ssl_certfile: found {file} with the key in {keyfile or 'the same file'}: "
            f"{getattr(error, 'reason', None) or error}; accepted: a PEM certificate and its "
            "private key without a password"
        ) from error
    return Certificate(file, keyfile)
