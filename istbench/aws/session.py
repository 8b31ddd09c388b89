"""The door to AWS: boto3, imported only here; clients, and what goes wrong with them in one line."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from istbench.errors import RunFailed, UserError, printable

_EXPIRED = {
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "AuthFailure",
    "UnrecognizedClientException", "InvalidAccessKeyId",
}  # fmt: skip
# "403" is the answer to a HEAD request, which has no body to say more.
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
_SIGN_IN = "sign in again, as by `aws sso login`"
_LONGEST = 400


@dataclass(frozen=True)
class Aws:
    """AWS in one region."""

    region: str

    def client(self, service: str) -> Any:
        """The client of `service`, made once."""
        return _client(service, self.region)


def require_boto3() -> Any:
    """The module.

    Raises:
        UserError: where it is not installed.
    """
    try:
        import boto3
    except ImportError:
        raise UserError("boto3 is not installed, which speaks to AWS: pip install 'istbench[aws]'") from None
    return boto3


def default_region() -> str | None:
    """The region of the user's environment or profile; None where there is none."""
    # boto3 itself looks at AWS_DEFAULT_REGION alone, unlike AWS's other tools.
    region: str | None = os.environ.get("AWS_REGION") or require_boto3().Session().region_name
    return region


def connect(region: str | None, fallback: str | None = None) -> Aws:
    """AWS in `region`, or in the user's own, or in `fallback`.

    Raises:
        UserError: where boto3 is missing, or there is no region.
    """
    with calls("to look up the region"):
        found = region or default_region() or fallback
    if not found:
        raise UserError("no region: give --region, `region` in the spec, or set AWS_REGION")
    return Aws(found)


@cache
def _client(service: str, region: str) -> Any:
    from botocore.config import Config

    # What is asked too often is asked again, slower.
    config = Config(retries={"mode": "standard", "max_attempts": 8}, connect_timeout=15, read_timeout=60)
    return require_boto3().Session(region_name=region).client(service, config=config)


@contextlib.contextmanager
def calls(doing: str) -> Iterator[None]:
    """What AWS answers inside with an error becomes one line; `doing` ends "AWS was asked ...".

    Raises:
        UserError: without credentials, or with an unknown profile or region.
        RunFailed: where AWS refuses, or cannot be reached.
    """
    exceptions = require_boto3().exceptions
    from botocore import exceptions as core
    from botocore.parsers import ResponseParserError

    try:
        yield
    except core.ClientError as error:
        raise RunFailed(_refusal(error, doing)) from None
    except exceptions.S3UploadFailedError as error:
        raise RunFailed(f"AWS was asked {doing}: {_short(error)}; run the same command again") from None
    except (core.NoCredentialsError, core.PartialCredentialsError):
        raise UserError(f"no credentials of AWS: {_SIGN_IN}, or set AWS_PROFILE") from None
    except (core.ProfileNotFound, core.NoRegionError, core.InvalidRegionError) as error:
        raise UserError(f"AWS: {_short(error)}; set AWS_PROFILE and AWS_REGION to what there is") from None
    except (core.SSOError, core.TokenRetrievalError, core.CredentialRetrievalError) as error:
        raise RunFailed(f"AWS credentials have expired ({_short(error)}): {_SIGN_IN}") from None
    except (core.HTTPClientError, core.ConnectionError) as error:
        raise RunFailed(
            f"AWS was asked {doing}, and is not reached ({_short(error)}): see the connection and the region"
        ) from None
    except ResponseParserError as error:  # as of a proxy, or of a network that wants a password first
        raise RunFailed(
            f"AWS was asked {doing}, and what answered is not AWS ({_short(error)}): see the connection"
        ) from None
    except core.BotoCoreError as error:
        raise RunFailed(f"AWS was asked {doing}: {_short(error)}; run the same command again") from None


def error_code(error: Any) -> str:
    """AWS's own word for an error, such as `ValidationError`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _refusal(error: Any, doing: str) -> str:
    code, said = error_code(error), _short(error.response.get("Error", {}).get("Message", ""))
    if code in _EXPIRED:
        return f"AWS credentials have expired or are wrong ({code}): {_SIGN_IN}"
    if code in _DENIED:
        return f"AWS was asked {doing}, and you may not ({said}); docs/aws.md lists the permissions needed"
    return f"AWS was asked {doing}, and refused: {said or code} ({code})"


def _short(error: object) -> str:
    text = printable(" ".join(str(error).split())).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
