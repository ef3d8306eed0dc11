"""Checks the certificate and key of HTTPS before models are loaded."""

import ssl
from dataclasses import dataclass

from server.settings.schema import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM file with the certificate chain, and the key where it is in another file."""

    file: str
    keyfile: str | None


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the checked certificate, None for plain HTTP. Raises SettingsError."""
    file, keyfile = settings.server.ssl_certfile, settings.server.ssl_keyfile
    if file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without the callback OpenSSL prompts for the password of an encrypted key.
        context.load_cert_chain(file, keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"server.ssl_certfile: found {file} with the key in {keyfile or 'the same file'}: "
            f"{getattr(error, 'reason', None) or error}; accepted: a PEM certificate and its "
            "private key without a password"
        ) from error
    return Certificate(file, keyfile)
