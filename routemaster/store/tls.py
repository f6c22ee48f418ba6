"""TLS towards the store: whom it trusts, and by what it is known itself.

Certificates are always checked, and for the address that was asked for: there is no setting to do without.
Files are read for every new connection, so that renewed ones are taken without a restart.
"""

import ssl

from routemaster.errors import StoreUnfit
from routemaster.store_url import StoreUrl


def tls_of(url: StoreUrl) -> ssl.SSLContext | None:
    """What to connect with; None where there is no TLS."""
    if not url.is_secure:
        return None
    try:
        context = ssl.create_default_context(cafile=url.ca or None)
    except OSError as error:
        raise StoreUnfit(f"{url.ca} cannot be used: expected certificates of authorities ({error})") from None
    if url.cert:
        try:
            context.load_cert_chain(url.cert, url.key or None, password="")
        except OSError as error:
            expected = "a PEM certificate and its key, without a password"
            raise StoreUnfit(f"{url.cert} cannot be used: expected {expected} ({error})") from None
    return context
