"""One POST: with verified TLS, without redirects, and with a short form of the answer."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import Message as Headers
from http.client import HTTPException
from typing import IO

from console.notify.targets import NotSentError

_SHOWN_BYTES = 300


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Headers,
        newurl: str,
    ) -> None:
        del req, fp, code, msg, headers, newurl


def post(
    url: str, data: bytes, headers: Mapping[str, str], secrets: Sequence[str], seconds: float
) -> str:
    """The answer. NotSentError, without the secrets. `seconds`: the time-out of each step."""
    try:
        request = urllib.request.Request(url, data, dict(headers), method="POST")  # noqa: S310
        # Created for each request: certificates are renewed while a recorder runs.
        secure = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        opener = urllib.request.build_opener(_NoRedirects, secure)
        with opener.open(request, timeout=seconds) as answer:
            return f"HTTP {answer.status}"
    except urllib.error.HTTPError as error:
        raise _refused(error, secrets) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NotSentError(_why(error, seconds)) from None


def _refused(error: urllib.error.HTTPError, secrets: Sequence[str]) -> NotSentError:
    """With the beginning of the answer, which may repeat secrets."""
    text = ""
    with suppress(OSError, HTTPException, ValueError), error:
        text = error.read(_SHOWN_BYTES).decode(errors="replace")
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    text = " ".join(text.split())
    after = error.headers.get("Retry-After", "") if error.headers else ""
    why = f"answered HTTP {error.code}{f': {text}' if text else ''}"
    wait = float(after) if after.isascii() and after.isdigit() else 0.0
    return NotSentError(why, reached=True, retry_after=wait)


def _why(error: Exception, seconds: float) -> str:
    """Without the texts of other errors, which may have the address in them."""
    reason = getattr(error, "reason", error)
    if isinstance(error, ValueError):
        return "its address or its secret has characters that cannot be sent"
    if isinstance(reason, TimeoutError):
        return f"did not answer within {seconds:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {reason.verify_message}"
    if isinstance(reason, ssl.SSLError):
        return f"TLS failed: {reason.reason or 'unknown'}"
    if isinstance(reason, OSError) and reason.strerror:
        return f"cannot be reached: {reason.strerror}"
    return f"its answer is not HTTP: {type(reason).__name__}"
